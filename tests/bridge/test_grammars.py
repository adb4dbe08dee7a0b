"""A grammar that takes minutes to compile holds up neither online requests nor other lines."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest

from weir_agent.vllm_bridge.grammars import GrammarCompiler, take_over_compiler

PATIENCE_S = 60.0
OFFLINE = {"weir": {"class": "offline"}}


class Compilations:
    """What vLLM would compile; a request whose id begins with "slow" until ``end``."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.end = threading.Event()
        self.begun: dict[str, threading.Event] = {}
        self.online = ThreadPoolExecutor(max_workers=1)
        self.compiler = GrammarCompiler(self.online, most_s=60.0, clock=lambda: self.now_s)

    def submit(self, request_id: str, extra_args: dict[str, Any] | None = OFFLINE) -> Future[Any]:
        params = SimpleNamespace(extra_args=extra_args)
        self.begun[request_id] = threading.Event()
        request = SimpleNamespace(request_id=request_id, sampling_params=params)
        return self.compiler.submit(self.compile, request)

    def compile(self, request: Any) -> str:  # noqa: ANN401 - vLLM's
        self.begun[request.request_id].set()
        if request.request_id.startswith("slow"):
            assert self.end.wait(PATIENCE_S)
        if request.request_id.startswith("wrong"):
            raise ValueError("no grammar")
        return f"grammar of {request.request_id}"

    def begins(self, request_id: str) -> None:
        assert self.begun[request_id].wait(PATIENCE_S)


@pytest.fixture
def made() -> Iterator[Compilations]:
    compilations = Compilations()
    yield compilations
    compilations.end.set()
    compilations.compiler.shutdown()


def test_online_grammars_do_not_wait_behind_those_of_lines(made: Compilations) -> None:
    made.submit("slow")
    made.begins("slow")
    tags: list[dict[str, Any] | None] = [None, {}, {"weir": {}}, {"weir": "nonsense"}]
    for number, tag in enumerate(tags):
        name = f"online-{number}"
        assert made.submit(name, tag).result(PATIENCE_S) == f"grammar of {name}"


def test_lines_are_compiled_one_after_another_and_told_what_is_wrong(made: Compilations) -> None:
    assert made.submit("a").result(PATIENCE_S) == "grammar of a"
    with pytest.raises(ValueError, match="no grammar"):
        made.submit("wrong").result(PATIENCE_S)
    assert made.submit("b").result(PATIENCE_S) == "grammar of b"
    made.now_s = 1_000.0
    assert made.compiler.give_up() == {}


def test_a_line_whose_grammar_takes_too_long_is_given_up_and_the_next_goes_on(
    made: Compilations,
) -> None:
    made.submit("slow")
    made.begins("slow")
    behind = made.submit("behind")
    made.now_s = 60.0
    assert made.compiler.give_up() == {}
    made.now_s = 61.0
    reasons = made.compiler.give_up()
    assert list(reasons) == ["slow"]
    assert "took more than 60 s to compile" in reasons["slow"]
    assert behind.result(PATIENCE_S) == "grammar of behind"
    assert made.compiler.give_up() == {}


def test_while_too_many_take_too_long_lines_wait_no_longer_either(made: Compilations) -> None:
    made.submit("slow-1")
    made.begins("slow-1")
    made.submit("slow-2")
    made.now_s = 61.0
    made.compiler.give_up()
    made.begins("slow-2")
    made.now_s = 100.0
    behind = made.submit("behind")
    made.now_s = 122.0
    assert list(made.compiler.give_up()) == ["slow-2"]
    later = made.submit("later")
    made.now_s = 161.0
    reasons = made.compiler.give_up()
    assert list(reasons) == ["behind"]
    assert "those of other lines" in reasons["behind"]
    with pytest.raises(CancelledError):
        behind.result(PATIENCE_S)
    made.end.set()  # they end at last
    assert later.result(PATIENCE_S) == "grammar of later"


def test_what_was_aborted_is_not_compiled(made: Compilations) -> None:
    slow = made.submit("slow")
    made.begins("slow")
    aborted, behind = made.submit("aborted"), made.submit("behind")
    for request_id in ("slow", "aborted", "unknown"):
        made.compiler.forget(request_id)
    made.end.set()
    assert behind.result(PATIENCE_S) == "grammar of behind"
    assert slow.done()  # what has begun cannot be stopped
    assert aborted.cancelled()
    assert not made.begun["aborted"].is_set()


def test_an_engine_that_stops_does_not_wait_for_them(made: Compilations) -> None:
    made.submit("slow")
    made.begins("slow")
    behind = made.submit("behind")
    made.compiler.shutdown(wait=True, cancel_futures=True)
    assert behind.cancelled()
    with pytest.raises(RuntimeError):
        made.submit("online", None)


def test_a_second_scheduler_takes_over_the_same_executor(made: Compilations) -> None:
    manager = SimpleNamespace(executor=made.online)
    for _ in range(2):
        compiler = take_over_compiler(manager, most_s=1.0, clock=lambda: 0.0)
        assert compiler is manager.executor
        assert compiler is not None
        assert compiler.online is made.online
    assert take_over_compiler(SimpleNamespace(), most_s=1.0, clock=lambda: 0.0) is None
