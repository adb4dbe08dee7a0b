"""KV blocks that offline admissions leave free for online requests."""

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
MOST_BLOCKS = 16  # half of 64 / sqrt(4)


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


def computes(room: OnlineRoom, tokens: int) -> None:
    """A step that admits the waiting request with so many tokens takes effect."""
    name = RequestId("off")
    work = Work(request_id=name, tokens=tokens, admitted=True, reason="offline-admit")
    shape = StepShape(prefill_tokens=tokens, prefill_requests=1)
    room.on_begin(StepPlan(step=1, now_s=0.0, work=(work,), shape=shape, online_shape=EMPTY_SHAPE))


def test_room_grows_with_what_is_computed_again_up_to_a_bound(
    engine: MiniEngine, waiting: Request
) -> None:
    room = OnlineRoom(engine.scheduler.state)
    computes(room, 40)
    assert room.spare_blocks(HELD_BLOCKS) == 0
    waiting.served_tokens = 40
    computes(room, 40)
    # 40 tokens less the 8% that may be, in blocks of 4.
    assert room.spare_blocks(HELD_BLOCKS) == pytest.approx(9.2)
    computes(room, 40)
    assert room.spare_blocks(HELD_BLOCKS) == MOST_BLOCKS


def test_room_shrinks_again_while_nothing_is_lost(engine: MiniEngine, waiting: Request) -> None:
    room = OnlineRoom(engine.scheduler.state)
    waiting.served_tokens = 40
    computes(room, 40)
    waiting.served_tokens = 0
    computes(room, 100)
    assert room.spare_blocks(HELD_BLOCKS) == pytest.approx(7.2)
    for _ in range(10):
        computes(room, 100)
    assert room.spare_blocks(HELD_BLOCKS) == 0


def test_without_online_requests_every_block_is_offlines() -> None:
    room = OnlineRoom(MiniEngine(slos=(TTFT,)).scheduler.state)
    assert room.spare_blocks(0) == 0


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


def test_only_a_percentile_of_ttft_keeps_room(monkeypatch: pytest.MonkeyPatch) -> None:
    tail, mean = busy(TTFT).plans, busy(TTFT_MEAN).plans
    monkeypatch.setattr(OnlineRoom, "spare_blocks", lambda *_: 50.0)
    assert busy(TTFT).plans != tail
    assert busy(TTFT_MEAN).plans == mean
