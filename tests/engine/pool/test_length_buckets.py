"""Length buckets with a prefix tree each: few candidates stand for the whole pool (Echo §6)."""

import pytest

from tests.engine.sched.mini_engine import request
from weir_engine.errors import DuplicateRequestError, UnknownRequestError
from weir_engine.ids import RequestId
from weir_engine.pool.length_buckets import LengthBuckets, bucket_of
from weir_engine.request import Request


def ask(name: str, prompt: int, family: str | None = None) -> Request:
    return request(name, online=False, prompt=prompt, prefix=family, shared_blocks=2)


def filled(*requests: Request) -> LengthBuckets:
    buckets = LengthBuckets()
    for each in requests:
        buckets.add(each)
    return buckets


def heads(buckets: LengthBuckets, near: int, each: int = 1, limit: int = 64) -> list[str]:
    return [found.id for found in buckets.heads(limit, near_tokens=near, each=each)]


def test_the_bucket_of_the_batch_s_lengths_is_asked_first() -> None:
    buckets = filled(ask("short", 20), ask("long", 200), ask("middle", 60))
    assert heads(buckets, near=210) == ["long", "middle", "short"]
    assert heads(buckets, near=20) == ["short", "middle", "long"]
    assert heads(buckets, near=20, limit=1) == ["short"]


def test_every_family_has_its_say_before_one_fills_the_list() -> None:
    family = [ask(f"a{i}", 40, "a") for i in range(5)]
    buckets = filled(*family, ask("b0", 40, "b"), ask("alone", 40))
    assert heads(buckets, near=40) == ["a0", "b0", "alone"]
    assert heads(buckets, near=40, each=2) == ["a0", "a1", "b0", "alone"]


def test_a_family_that_was_started_comes_first() -> None:
    buckets = filled(*(ask(f"{f}{i}", 40, f) for f in "ab" for i in range(2)))
    buckets.remove(RequestId("b0"), runs=True)
    assert heads(buckets, near=40) == ["b1", "a0"]
    buckets.remove(RequestId("b1"), runs=False)
    assert heads(buckets, near=40) == ["a0"]


def test_what_left_is_gone_and_twice_is_an_error() -> None:
    buckets = filled(ask("x", 40))
    with pytest.raises(DuplicateRequestError):
        buckets.add(ask("x", 40))
    assert RequestId("x") in buckets
    buckets.remove(RequestId("x"), runs=False)
    assert len(buckets) == 0
    assert heads(buckets, near=40) == []
    with pytest.raises(UnknownRequestError):
        buckets.remove(RequestId("x"), runs=False)


def test_each_doubling_of_length_is_a_bucket() -> None:
    assert bucket_of(32) == bucket_of(63) != bucket_of(64)
