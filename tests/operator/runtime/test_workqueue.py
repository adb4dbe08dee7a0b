"""The queue on virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from itertools import pairwise
from random import Random

from tests.support.virtual_time import run_virtual
from weir_operator.backoff import TokenBucket, jittered_s
from weir_operator.planning.types import ObjectKey
from weir_operator.reconcile.gate import StatusGate
from weir_operator.workqueue import QueueTerms, RetryError, WorkQueue

Clock = Callable[[], float]


def key(name: str) -> ObjectKey:
    return ObjectKey(kind="BatchJob", namespace="team", name=name)


def queue_of(
    work: Callable[[ObjectKey], Awaitable[float | None]],
    clock: Clock,
    *,
    workers: int = 4,
    rate_per_s: float = 1000,
    timeout_s: float = 60,
) -> WorkQueue:
    terms = QueueTerms(
        workers=workers,
        rate_per_s=rate_per_s,
        backoff_first_s=1,
        backoff_most_s=30,
        timeout_s=timeout_s,
    )
    return WorkQueue(work, terms, clock=clock, random=Random(1))  # noqa: S311


async def running(queue: WorkQueue, for_s: float) -> None:
    task = asyncio.create_task(queue.run())
    await asyncio.sleep(for_s)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def test_many_events_of_one_key_cost_one_reconcile_and_one_more_while_it_runs() -> None:
    async def main(clock: Clock) -> list[str]:
        done: list[str] = []

        async def work(item: ObjectKey) -> None:
            done.append(item.name)
            if len(done) == 1:
                for _ in range(100):
                    queue.add(item)
            await asyncio.sleep(1)

        queue = queue_of(work, clock)
        for _ in range(100):
            queue.add(key("a"))
        await running(queue, 10)
        return done

    assert run_virtual(main) == ["a", "a"]


def test_one_key_is_serial_and_keys_are_parallel_up_to_the_bound() -> None:
    async def main(clock: Clock) -> tuple[int, int]:
        now: list[str] = []
        most, same = 0, 0

        async def work(item: ObjectKey) -> float:
            nonlocal most, same
            now.append(item.name)
            most, same = max(most, len(now)), max(same, now.count(item.name))
            await asyncio.sleep(1)
            now.remove(item.name)
            return 0.5

        queue = queue_of(work, clock, workers=3)
        for number in range(10):
            queue.add(key(str(number)))
        await running(queue, 30)
        return most, same

    assert run_virtual(main) == (3, 1)


def test_failures_back_off_with_full_jitter_and_stop_no_other_key() -> None:
    async def main(clock: Clock) -> tuple[list[float], int]:
        tries: list[float] = []
        others = 0

        async def work(item: ObjectKey) -> float | None:
            nonlocal others
            if item.name == "bad":
                tries.append(clock())
                raise RetryError("refused")
            others += 1
            return 1.0

        queue = queue_of(work, clock)
        queue.add(key("bad"))
        queue.add(key("good"))
        await running(queue, 300)
        return tries, others

    tries, others = run_virtual(main)
    pauses = [after - before for before, after in pairwise(tries)]
    assert others >= 290
    assert all(pause <= 30.01 for pause in pauses)
    assert max(pauses) > 5 * max(pauses[0], 0.2)
    assert len(tries) < 60


def test_work_without_end_counts_as_failed_and_its_worker_is_free_again() -> None:
    async def main(clock: Clock) -> list[str]:
        done: list[str] = []

        async def work(item: ObjectKey) -> None:
            if item.name == "stuck":
                await asyncio.sleep(3600)
            done.append(item.name)

        queue = queue_of(work, clock, workers=1, timeout_s=5)
        queue.add(key("stuck"))
        queue.add(key("next"))
        await running(queue, 20)
        assert queue.failures(key("stuck")) >= 1
        return done

    assert run_virtual(main) == ["next"]


def test_a_defect_of_one_object_is_retried_and_stops_no_other() -> None:
    async def main(clock: Clock) -> int:
        done = 0

        async def work(item: ObjectKey) -> float | None:
            nonlocal done
            if item.name == "odd":
                raise KeyError("spec")
            done += 1
            return 1.0

        queue = queue_of(work, clock)
        queue.add(key("odd"))
        queue.add(key("fine"))
        await running(queue, 10)
        assert queue.failures(key("odd")) > 1
        return done

    assert run_virtual(main) >= 9


def test_a_success_forgets_the_failures() -> None:
    async def main(clock: Clock) -> int:
        failing = True

        async def work(_: ObjectKey) -> None:
            if failing:
                raise RetryError("down")

        queue = queue_of(work, clock)
        queue.add(key("a"))
        task = asyncio.create_task(queue.run())
        await asyncio.sleep(20)
        failing = False
        await asyncio.sleep(40)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        return queue.failures(key("a"))

    assert run_virtual(main) == 0


def test_of_two_delays_the_shorter_holds() -> None:
    async def main(clock: Clock) -> list[float]:
        at: list[float] = []

        async def work(_: ObjectKey) -> None:
            at.append(clock())

        queue = queue_of(work, clock)
        started_s = clock()
        queue.add_after(key("a"), 50)
        queue.add_after(key("a"), 5)
        queue.add_after(key("a"), 20)
        await running(queue, 100)
        return [round(moment - started_s, 1) for moment in at]

    assert run_virtual(main) == [5.0]


def test_starts_are_limited_over_all_keys() -> None:
    async def main(clock: Clock) -> int:
        done = 0

        async def work(_: ObjectKey) -> float:
            nonlocal done
            done += 1
            return 0.01

        queue = queue_of(work, clock, workers=8, rate_per_s=10)
        for number in range(100):
            queue.add(key(str(number)))
        await running(queue, 10)
        return done

    assert 100 <= run_virtual(main) <= 111


def test_jitter_is_full_and_bounded() -> None:
    random = Random(3)  # noqa: S311
    for failures in (1, 5, 50, 5000):
        pauses = [jittered_s(failures, first_s=0.25, most_s=60, random=random) for _ in range(500)]
        ceiling_s = min(60, 0.25 * 2.0 ** min(failures - 1, 30))
        assert min(pauses) < 0.1 * ceiling_s
        assert 0.9 * ceiling_s < max(pauses) <= ceiling_s


def test_status_writes_are_bounded_for_one_object_and_for_all() -> None:
    now_s = [0.0]
    gate = StatusGate(writes_per_s=20, interval_s=5, clock=lambda: now_s[0])
    written: dict[str, list[float]] = {}
    while now_s[0] < 60:
        for number in range(200):
            uid = str(number)
            if gate.wait_s(uid) == 0:
                written.setdefault(uid, []).append(now_s[0])
        now_s[0] += 0.1
    everything = sorted(moment for moments in written.values() for moment in moments)
    assert 14 * 60 <= len(everything) <= 20 * 60
    for moments in written.values():
        gaps = [after - before for before, after in pairwise(moments)]
        assert all(gap >= 4.99 for gap in gaps)
    for start in range(59):
        assert sum(start <= moment < start + 1 for moment in everything) <= 20


def test_a_bucket_says_how_long_to_wait() -> None:
    now_s = [0.0]
    bucket = TokenBucket(rate_per_s=2, burst=1, clock=lambda: now_s[0])
    assert bucket.wait_s() == 0
    wait_s = bucket.wait_s()
    assert wait_s == 0.5
    now_s[0] += wait_s
    assert bucket.wait_s() == 0
