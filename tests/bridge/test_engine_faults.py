"""A real vLLM that does not do as planned, is paused, or drops its cache."""

from __future__ import annotations

from typing import Any

import pytest

from tests.bridge.engine_host import Ask, EngineHost, numbers, text
from tests.bridge.test_engine_outputs import POLICY, mixed_asks
from weir_agent.vllm_bridge.divergence import DivergenceError
from weir_agent.vllm_bridge.version import UnsupportedEngineError
from weir_engine.sched.plan import StepPlan, Work

pytestmark = [pytest.mark.vllm, pytest.mark.filterwarnings("ignore")]


class Meddler:
    """The real planner, except that every third plan asks for what vLLM will not do."""

    def __init__(self, planner: Any, mistake: str) -> None:  # noqa: ANN401 - the planner or a fake
        self._planner = planner
        self._mistake = mistake
        self._plans = 0

    def __getattr__(self, name: str) -> object:
        return getattr(self._planner, name)

    def plan(self, now_s: float) -> StepPlan:
        plan: StepPlan = self._planner.plan(now_s)
        self._plans += 1
        if self._plans % 3 or not plan.work:
            return plan
        return plan._replace(work=tuple(self._spoil(work) for work in plan.work))

    def _spoil(self, work: Work) -> Work:
        too_many = self._mistake == "tokens"
        return Work(
            request_id=work.request_id,
            tokens=work.tokens + 7 * too_many,
            admitted=work.admitted,
            hit_tokens=work.hit_tokens + 32 * (work.admitted and not too_many),
            reason=work.reason,
        )


def meddling(mistake: str) -> Any:  # noqa: ANN401 - a planner factory
    from weir_agent.vllm_bridge.planner import build_planner

    return lambda *arguments: Meddler(build_planner(*arguments), mistake)


def drive(host: EngineHost, *, turns: int) -> None:
    for _ in range(turns):
        host.step()


def test_a_divergence_raises_in_strict_mode(host: EngineHost) -> None:
    """Design §9."""
    host.use_weir(factory=meddling("tokens"))
    for number in range(3):
        host.add(Ask(id=f"r{number}", prompt=text(numbers(number), 40), output=9))
    with pytest.raises(DivergenceError, match=r"tokens \(planned, scheduled\)"):
        drive(host, turns=10)


@pytest.mark.parametrize(
    ("mistake", "counted"), [("tokens", "divergences"), ("hits", "admissions_put_off")]
)
def test_in_production_a_divergence_is_counted_and_costs_nobody_a_token(
    host: EngineHost, mistake: str, counted: str
) -> None:
    """Design §9: ``commit`` takes what vLLM did; no online request is thrown away."""
    asks = mixed_asks(21)
    host.use_stock()
    expected = host.run(asks)
    driver = host.use_weir({"policy": POLICY, "strict": False}, factory=meddling(mistake))
    assert host.run(asks) == expected
    telemetry = driver.telemetry()
    assert telemetry[counted] > 0
    assert telemetry["requests"] == 0
    assert telemetry["free_kv_blocks"] == telemetry["total_blocks"]


def test_a_paused_engine_runs_nothing_and_goes_on_where_it_was(host: EngineHost) -> None:
    from vllm.v1.core.sched.interface import PauseState

    asks = mixed_asks(22)
    host.use_stock()
    expected = host.run(asks)
    driver = host.use_weir({"policy": POLICY})
    for ask in asks:
        host.add(ask)
    done: dict[str, tuple[int, ...]] = {}
    for _ in range(3):
        done.update(host.step())
    host.scheduler.set_pause_state(PauseState.PAUSED_ALL)
    steps = driver.telemetry()["steps"]
    for _ in range(3):
        assert host.step() == {}
    assert driver.telemetry()["steps"] == steps
    host.scheduler.set_pause_state(PauseState.PAUSED_NEW)
    waiting = len(host.scheduler.waiting)
    for _ in range(60):
        done.update(host.step())
    assert len(host.scheduler.waiting) == waiting  # nobody new was admitted
    host.scheduler.set_pause_state(PauseState.UNPAUSED)
    for finished in host.steps():
        done.update(finished)
    assert done == expected


def test_a_dropped_cache_preempts_everything_and_loses_nothing(host: EngineHost) -> None:
    asks = mixed_asks(23)
    host.use_stock()
    expected = host.run(asks)
    driver = host.use_weir({"policy": POLICY})
    for ask in asks:
        host.add(ask)
    done: dict[str, tuple[int, ...]] = {}
    for _ in range(4):
        done.update(host.step())
    assert host.scheduler.reset_prefix_cache(reset_running_requests=True)
    assert driver.kv.free_blocks == driver.kv.total_blocks
    for finished in host.steps():
        done.update(finished)
    assert done == expected
    assert driver.telemetry()["divergences"] == 0


def test_a_cache_is_dropped_after_a_preempted_request_was_aborted(host: EngineHost) -> None:
    """Else those that ran would never run again: the planner would not know that they wait."""
    from vllm.v1.request import RequestStatus

    rng = numbers(25)
    offline = [Ask(id=f"off{n}", prompt=text(rng, 100), output=60, offline=True) for n in range(6)]
    online = [Ask(id=f"on{n}", prompt=text(rng, 300), output=20) for n in range(2)]
    host.use_stock()
    expected = host.run([*offline, *online])
    driver = host.use_weir({"policy": {**POLICY, "offline_kv_blocks": 40}}, blocks=41)
    for ask in offline:
        host.add(ask)
    drive(host, turns=5)
    for ask in online:
        host.add(ask)
    for _ in range(60):
        if driver.telemetry()["preemptions"]:
            break
        host.step()
    preempted = [
        request.request_id
        for request in host.scheduler.requests.values()
        if request.status == RequestStatus.PREEMPTED
    ]
    host.engine.abort_request(preempted, internal=True)
    assert host.scheduler.reset_prefix_cache(reset_running_requests=True)
    done: dict[str, tuple[int, ...]] = {}
    for finished in host.steps():
        done.update(finished)
    assert set(done) >= {ask.id for ask in online}
    assert done == {name: expected[name] for name in done}
    assert driver.telemetry()["requests"] == 0


def test_a_configuration_that_weir_cannot_drive_is_refused_at_start(host: EngineHost) -> None:
    from weir_agent.vllm_bridge.scheduler import make_scheduler

    arguments = host.arguments()
    scheduler_config = arguments["vllm_config"].scheduler_config
    scheduler_config.policy = "fcfs"
    try:
        with pytest.raises(UnsupportedEngineError, match="scheduling_policy must be 'priority'"):
            make_scheduler(**arguments)
    finally:
        scheduler_config.policy = "priority"


def test_a_vllm_whose_scheduler_changed_is_refused_at_start(
    host: EngineHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    from vllm.v1.core.sched.scheduler import Scheduler

    from weir_agent.vllm_bridge.scheduler import make_scheduler

    def preempt(self: object, request: object) -> None:
        """One parameter fewer than Weir passes."""

    monkeypatch.setattr(Scheduler, "_preempt_request", preempt)
    monkeypatch.delattr(Scheduler, "_free_request_blocks")
    with pytest.raises(UnsupportedEngineError) as refusal:
        make_scheduler(**host.arguments())
    assert "Scheduler._preempt_request takes (self, request)" in str(refusal.value)
    assert "Scheduler._free_request_blocks is missing" in str(refusal.value)
    assert 'install "vllm==0.32.*"' in str(refusal.value)
