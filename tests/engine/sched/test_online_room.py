"""KV blocks that offline admissions leave free for online requests."""

from collections.abc import Callable

import pytest

from tests.engine.sched.mini_engine import MiniEngine, request
from weir_engine.config import Metric, Slo
from weir_engine.ids import RequestId
from weir_engine.latency.features import EMPTY_SHAPE, StepShape
from weir_engine.request import Request
from weir_engine.sched.online_room import OnlineRoom
from weir_engine.sched.plan import StepPlan, Work

TTFT = Slo(metric=Metric.TTFT, statistic="p90", threshold_s=2.0)
TTFT_MEAN = Slo(metric=Metric.TTFT, statistic="mean", threshold_s=2.0)
ONLINE, HELD_BLOCKS = 4, 64
MOST_BLOCKS = 64  # twice 64 / sqrt(4)


@pytest.fixture
def engine() -> MiniEngine:
    """Four online requests that hold 64 blocks, and an offline one that waits."""
    engine = MiniEngine(slos=(TTFT,), blocks=100, max_batched_tokens=500)
    for at in range(ONLINE):
        engine.add(request(f"on{at}", online=True, prompt=62, output=50, at=at / 1000))
    while len(engine.scheduler.state.running_online) < ONLINE:
        engine.step()
    return engine


@pytest.fixture
def waiting(engine: MiniEngine) -> Request:
    found = request("off", online=False, prompt=40)
    engine.scheduler.add(found)
    return found


def computes(room: OnlineRoom, tokens: int, *, at: float = 0.0) -> None:
    """A step that admits the waiting request with so many tokens takes effect."""
    name = RequestId("off")
    work = Work(request_id=name, tokens=tokens, admitted=True, reason="offline-admit")
    shape = StepShape(prefill_tokens=tokens, prefill_requests=1)
    room.on_begin(StepPlan(step=1, now_s=at, work=(work,), shape=shape, online_shape=EMPTY_SHAPE))


def online_alone(room: OnlineRoom, *, at: float) -> None:
    """A step without offline work takes effect."""
    shape = StepShape(decode_requests=ONLINE)
    room.on_begin(StepPlan(step=1, now_s=at, shape=shape, online_shape=shape))


def kept(room: OnlineRoom, *, at: float = 0.0) -> float:
    """Blocks of room that an admission leaves at that time."""
    return room.spare_blocks(HELD_BLOCKS, at)


def test_room_grows_with_what_is_computed_again_up_to_a_bound(
    engine: MiniEngine, waiting: Request
) -> None:
    room = OnlineRoom(engine.scheduler.state)
    computes(room, 40)
    assert kept(room) == 0
    waiting.served_tokens = 40
    computes(room, 40)
    # 40 tokens less the 8% that may be, in blocks of 4.
    assert kept(room) == pytest.approx(9.2)
    for _ in range(10):
        computes(room, 40)
    assert kept(room) == MOST_BLOCKS


def test_room_shrinks_again_while_nothing_is_lost(engine: MiniEngine, waiting: Request) -> None:
    room = OnlineRoom(engine.scheduler.state)
    waiting.served_tokens = 40
    computes(room, 40)
    waiting.served_tokens = 0
    computes(room, 100)
    assert kept(room) == pytest.approx(7.2)
    for _ in range(10):
        computes(room, 100)
    assert kept(room) == 0


def test_room_that_keeps_all_offline_work_out_fades(engine: MiniEngine, waiting: Request) -> None:
    room = OnlineRoom(engine.scheduler.state)
    waiting.served_tokens = 400
    computes(room, 400)
    online_alone(room, at=1.0)
    online_alone(room, at=5.0)
    assert [kept(room, at=at) for at in (1.0, 6.0, 11.0, 99.0)] == [MOST_BLOCKS, 32.0, 0.0, 0.0]
    computes(room, 1, at=12.0)
    assert kept(room, at=13.0) == MOST_BLOCKS


def test_room_stays_while_nobody_waits_for_it(engine: MiniEngine, waiting: Request) -> None:
    room = OnlineRoom(engine.scheduler.state)
    waiting.served_tokens = 400
    computes(room, 400)
    engine.scheduler.abort(waiting.id)
    online_alone(room, at=1.0)
    assert kept(room, at=99.0) == MOST_BLOCKS


def test_a_prompt_longer_than_what_room_leaves_is_admitted_in_the_end() -> None:
    # Two online requests hold 32 of 100 blocks, and some 9 are room once a prompt was computed
    # again: the next one needs 61.
    engine = MiniEngine(slos=(TTFT,), blocks=100, max_batched_tokens=40)
    count = 0

    def run(until: Callable[[], bool]) -> None:
        nonlocal count
        for _ in range(3_000):
            if until():
                return
            if len(engine.scheduler.state.running_online) < 2:
                engine.add(request(f"on{count}", online=True, prompt=60, output=8, at=engine.now_s))
                count += 1
            engine.step()
        pytest.fail("nothing came of it in 3,000 steps")

    first, second = (request(name, online=False, prompt=240) for name in ("first", "second"))
    engine.add(first)
    run(lambda: first.computed_tokens > 150)
    engine.add(request("burst", online=True, prompt=240, output=2, at=engine.now_s))
    run(lambda: "burst" in engine.ended)
    engine.add(request("another", online=True, prompt=240, output=2, at=engine.now_s))
    run(lambda: "first" in engine.ended)
    assert first.preemptions == 1
    engine.add(second)
    run(lambda: "second" in engine.ended)


def test_without_online_requests_every_block_is_offlines() -> None:
    room = OnlineRoom(MiniEngine(slos=(TTFT,)).scheduler.state)
    assert room.spare_blocks(0, 0.0) == 0


def busy(*slos: Slo) -> MiniEngine:
    """Offline requests that fill the blocks, and bursts of online ones."""
    engine = MiniEngine(slos=slos, blocks=120, max_batched_tokens=200)
    for at in range(300):
        engine.add(request(f"off{at:03}", online=False, prompt=48, output=12, at=at / 1e6))
    for at in range(60):
        name, outputs = f"on{at:02}", 10 + 20 * (at % 3)
        engine.add(request(name, online=True, prompt=20, output=outputs, at=engine.now_s))
        for _ in range(8 if at % 4 == 0 else 2):
            engine.step()
    return engine


def computed_again(engine: MiniEngine) -> float:
    """Share of the offline tokens that were computed again."""
    counters = engine.scheduler.counters
    return 1 - counters.offline_served_tokens / counters.offline_computed_tokens


def test_less_is_computed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    with_room = computed_again(busy(TTFT))
    monkeypatch.setattr(OnlineRoom, "spare_blocks", lambda *_: 0.0)
    assert 0 < with_room < 0.5 * computed_again(busy(TTFT))


@pytest.mark.parametrize(("slos", "keeps"), [((TTFT,), True), ((TTFT_MEAN,), True), ((), False)])
def test_room_is_kept_where_there_is_an_objective(
    slos: tuple[Slo, ...], keeps: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = busy(*slos).plans
    monkeypatch.setattr(OnlineRoom, "spare_blocks", lambda *_: 50.0)
    assert (busy(*slos).plans != before) is keeps
