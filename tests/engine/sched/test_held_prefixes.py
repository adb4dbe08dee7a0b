"""Online prompts whose prefix other online requests hold: what they take from offline work."""

from collections.abc import Callable, Sequence
from functools import partial

import pytest

from tests.engine.sched.mini_engine import BLOCK, MiniEngine, request
from weir_engine.config import Metric, Slo
from weir_engine.request import Request


def reads(engine: MiniEngine, of: Callable[..., Request], offline: Sequence[Request]) -> None:
    """An online request, the first to read a prefix, decodes; offline ones run beside it then."""
    engine.add(of("reader", prompt=168, output=80))
    while not engine.live["reader"].output_tokens:
        engine.step()
    for new in offline:
        engine.add(new)
    engine.step()
    engine.step()


def test_beside_an_admission_with_a_hit_a_prompt_preempts_no_more_than_it_needs() -> None:
    """The blocks of the hit are online's own: ten missing ones do not cost all ten of offline's."""
    late = Slo(metric=Metric.TTFT, statistic="p99", threshold_s=0.3)
    engine = MiniEngine(slos=(late,), blocks=150, max_seqs=32)
    engine.add(request("first", online=True, prompt=36, output=1, prefix="sys", shared_blocks=8))
    engine.run()
    for number in range(10):
        engine.add(request(f"off{number}", online=False, prompt=16, output=8, at=engine.now_s))
    for _ in range(6):
        engine.step()
    tokens = engine.kv.free_blocks * BLOCK - 8
    engine.add(request("long", online=True, prompt=tokens, output=2, at=engine.now_s))
    for number in range(7):  # the long one would be late: each of these goes first
        engine.step()
        name = f"short{number}"
        engine.add(
            request(
                name,
                online=True,
                prompt=40,
                output=6,
                at=engine.now_s,
                prefix="sys",
                shared_blocks=8,
            )
        )
    gone = [len(plan.preempt) for plan in engine.plans if plan.preempt]
    assert gone  # it did lack blocks
    assert max(gone) <= 3
    engine.run()


@pytest.mark.parametrize("lacks", ["blocks", "a slot"])
def test_a_prompt_of_which_online_holds_most_takes_from_offline_what_it_lacks(lacks: str) -> None:
    """The blocks that a running online request holds were asked of offline, which has none of them:
    nobody gave way, and the prompt waited for that request's end."""
    engine = MiniEngine(blocks=64, max_seqs=16 if lacks == "blocks" else 3)
    system = partial(request, online=True, prefix="sys", shared_blocks=40)
    reads(engine, system, [request(f"off{n}", online=False, prompt=16, output=4) for n in range(4)])
    assert (engine.kv.free_blocks < 6) is (lacks == "blocks")
    engine.add(system("second", prompt=184, output=4, at=engine.now_s))
    plan = engine.step()
    assert "second" in {work.request_id for work in plan.work}
    assert len(plan.preempt) == 1


def test_a_prompt_keeps_the_prefix_of_online_when_offline_readers_of_it_give_way() -> None:
    engine = MiniEngine(blocks=64, max_seqs=16)
    system = partial(request, prefix="sys", shared_blocks=40)
    others = [system(f"off{n}", online=False, prompt=176, output=4) for n in range(4)]
    reads(engine, partial(system, online=True), others)
    for number in range(2):
        engine.add(system(f"on{number}", online=True, prompt=180, output=4, at=engine.now_s))
    plan = engine.step()
    hits = {work.request_id: work.hit_tokens for work in plan.work if work.admitted}
    assert plan.preempt
    assert hits == {"on0": 160, "on1": 160}
