"""What the engine does that no plan said: blocks taken back, requests that are gone."""

import pytest

from tests.engine.sched.mini_engine import MiniEngine, request
from weir_engine.errors import UnknownRequestError
from weir_engine.ids import RequestId
from weir_engine.sched.plan import StepOutcome


@pytest.mark.parametrize("online", [True, False])
def test_a_request_whose_blocks_the_engine_took_goes_on_with_its_tokens(*, online: bool) -> None:
    engine = MiniEngine()
    kept = engine.add(request("a", online=online, prompt=8, output=6))
    for _ in range(3):
        engine.step()
    produced = kept.output_tokens
    assert produced
    engine.kv.preempt(kept)
    engine.scheduler.preempted(kept.id, output_tokens=produced)
    assert (kept.computed_tokens, kept.preemptions) == (0, 1)
    engine.scheduler.preempted(kept.id, output_tokens=produced)
    assert kept.preemptions == 1  # it waited already
    (again,) = engine.step().work
    assert (again.admitted, again.hit_tokens + again.tokens) == (True, 8 + produced)
    engine.run()
    assert engine.ended == {"a": 1}
    with pytest.raises(UnknownRequestError, match="request a is not known"):
        engine.scheduler.preempted(kept.id, output_tokens=0)


def test_what_ended_while_its_step_ran_is_nobodys() -> None:
    """A client went away: its tokens come with the step, and nothing counts them."""
    engine = MiniEngine()
    engine.add(request("a", online=True))
    engine.add(request("b", online=True))
    plan = engine.scheduler.plan(0.0)
    engine.scheduler.begin(plan)
    engine.scheduler.abort(RequestId("a"))
    engine.scheduler.abort(RequestId("a"))  # nor does it hurt to hear of it twice
    a, b = RequestId("a"), RequestId("b")
    engine.scheduler.commit(
        plan,
        StepOutcome(started_s=0.0, ended_s=0.1, tokens={a: 1, b: 1}, finished=frozenset({a})),
    )
    counted = engine.scheduler.telemetry()
    assert (counted["online_tokens"], counted["finished_online"]) == (1, 0)
    assert counted["online_running"] == 1
