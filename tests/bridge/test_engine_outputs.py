"""What users get from a real vLLM under Weir: the same tokens, whatever runs beside and before."""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from tests.bridge.engine_host import SPLIT, Ask, EngineHost, numbers, text
from weir_agent.vllm_bridge.stats_pace import StatsPace
from weir_engine.sched.step_kind import StepKind

if TYPE_CHECKING:
    from weir_agent.vllm_bridge.driver import StepDriver
    from weir_engine.sched.plan import StepPlan

BLOCKS_OF_FEW = 41
pytestmark = [pytest.mark.vllm, pytest.mark.filterwarnings("ignore")]

POLICY = {"offline_kv_blocks": 200, "offline_seq_slots": 12}


def mixed_asks(seed: int, *, documents: int = 3, offline: int = 9, online: int = 5) -> list[Ask]:
    rng = numbers(seed)
    shared = [text(rng, 220) for _ in range(documents)]  # they end inside a block
    asks = [
        Ask(
            id=f"off{number}",
            prompt=shared[number % documents] + text(rng, rng.randrange(5, 60)),
            output=rng.randrange(2, 20),
            offline=True,
        )
        for number in range(offline)
    ]
    asks += [
        Ask(id=f"on{number}", prompt=text(rng, rng.randrange(5, 300)), output=rng.randrange(2, 30))
        for number in range(online)
    ]
    rng.shuffle(asks)
    return asks


def record_kinds(driver: StepDriver) -> Counter[StepKind]:
    """Of the steps to come."""
    kinds: Counter[StepKind] = Counter()
    apply = driver.step.apply

    def counted(plan: StepPlan) -> StepPlan:
        kinds[plan.kind] += 1
        return apply(plan)

    driver.step.apply = counted  # type: ignore[method-assign]
    return kinds


def test_tokens_equal_stock_vllm_with_and_without_colocation(host: EngineHost) -> None:
    asks = mixed_asks(1)
    host.use_stock()
    expected = host.run(asks)
    host.use_weir({"policy": POLICY})
    assert host.run(asks) == expected
    driver = host.use_weir({"policy": POLICY, "profile": SPLIT})
    kinds = record_kinds(driver)
    assert host.run(asks) == expected
    assert kinds[StepKind.PREFILL] > 3
    host.use_weir()
    online = [ask for ask in asks if not ask.offline]
    assert host.run(online) == {ask.id: expected[ask.id] for ask in online}


def test_prompts_that_part_inside_a_block_share_it_up_to_there(host: EngineHost) -> None:
    rng = numbers(9)
    shared = text(rng, 220)
    leader = Ask(id="leader", prompt=shared + text(rng, 40))
    others = [Ask(id=f"other{n}", prompt=shared + text(rng, 30), output=20) for n in range(4)]
    host.use_stock()
    expected = host.run([leader]) | host.run(others)
    host.use_weir()
    done = host.run([leader])
    for ask in others:
        host.add(ask)
    cached = {}
    while host.engine.has_unfinished_requests():
        for result in host.engine.step():
            cached[result.request_id] = result.num_cached_tokens
            done[result.request_id] = tuple(result.outputs[0].token_ids)
    assert done == expected
    assert cached == {ask.id: 220 for ask in others}  # stock vLLM: 192, six whole blocks


def test_batch_siblings_wait_for_the_block_in_which_they_part(host: EngineHost) -> None:
    """All at once: one leads, the others find all that they share."""
    rng = numbers(12)
    shared = text(rng, 636)  # longer than a step of 512 tokens
    asks = [
        Ask(id=f"off{n}", prompt=shared + text(rng, 30), output=6, offline=True) for n in range(5)
    ]
    host.use_stock()
    expected = host.run(asks)
    driver = host.use_weir({"policy": POLICY})
    assert host.run(asks) == expected
    assert driver.telemetry()["offline_hit_tokens"] == 4 * 636


def test_an_admission_whose_hit_is_gone_waits_for_the_next_step(
    host: EngineHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = numbers(13)
    shared = text(rng, 220)
    leader, other = (Ask(id=name, prompt=shared + text(rng, 40)) for name in ("leader", "other"))
    host.use_stock()
    expected = host.run([leader]) | host.run([other])
    driver = host.use_weir({"strict": False})
    done = host.run([leader])
    found = driver.kv.hit_blocks
    lost = iter([True])
    monkeypatch.setattr(
        driver.kv, "hit_blocks", lambda *of: found(*of)[: -1 if next(lost, False) else None]
    )
    monkeypatch.setattr(driver.kv, "held_by_online", lambda *_of: 0)  # which would ask first
    assert done | host.run([other]) == expected
    assert driver.telemetry()["admissions_put_off"] == 1


def test_hits_end_with_whole_blocks_where_that_is_set(host: EngineHost) -> None:
    rng = numbers(9)
    shared = text(rng, 220)
    driver = host.use_weir({"partial_hits": False})
    host.run([Ask(id="leader", prompt=shared + text(rng, 40))])
    before = driver.telemetry()["online_hit_tokens"]
    host.run([Ask(id="other", prompt=shared + text(rng, 30))])
    assert driver.telemetry()["online_hit_tokens"] - before == 192


def test_a_prompt_that_is_cached_whole_computes_its_last_token_only(host: EngineHost) -> None:
    prompt = text(numbers(10), 64)
    host.use_stock()
    expected = host.run([Ask(id="first", prompt=prompt, output=12)])["first"]
    driver = host.use_weir()
    host.run([Ask(id="first", prompt=prompt, output=12)])
    before = driver.telemetry()["online_hit_tokens"]
    assert host.run([Ask(id="again", prompt=prompt, output=12)])["again"] == expected
    assert driver.telemetry()["online_hit_tokens"] - before == 63


def test_a_prompt_that_fills_the_cache_runs_though_it_parts_inside_a_block(
    host: EngineHost,
) -> None:
    """With a copy of that block it needed one block more than there are, and nothing ran again."""
    rng = numbers(31)
    shared = text(rng, 220)
    ask = Ask(id="long", prompt=shared + text(rng, 780), output=8)
    host.use_stock()
    expected = host.run([ask])
    host.use_weir(blocks=33)  # of which one is vLLM's own: as many as the longest prompt takes
    host.run([Ask(id="first", prompt=shared + text(rng, 40))])
    assert host.run([ask]) == expected


def test_a_line_that_fills_the_threshold_runs_though_it_parts_inside_a_block(
    host: EngineHost,
) -> None:
    """With a copy of that block it was one over, and all lines behind it waited with it."""
    rng = numbers(5)
    document = text(rng, 220)
    slos = [
        {"metric": "ttft", "statistic": "p99", "threshold_s": 0.5},
        {"metric": "tpot", "statistic": "p99", "threshold_s": 0.1},
    ]
    policy = {"offline_kv_blocks": 10, "offline_seq_slots": 4}
    host.use_weir({"preset": "bros-paged", "policy": policy, "slos": slos}, blocks=64)
    host.run([Ask(id="first", prompt=document + text(rng, 40))])
    asks = [
        Ask(id="long", prompt=document + text(rng, 90), output=2, offline=True),
        Ask(id="short", prompt=text(rng, 30), output=2, offline=True),
    ]
    assert sorted(host.run(asks)) == ["long", "short"]


def test_offline_makes_room_for_a_prompt_of_which_online_holds_most(host: EngineHost) -> None:
    """The blocks that online holds were asked of offline too, which has not as many."""
    rng = numbers(32)
    document = text(rng, 640)
    host.use_weir(
        {"policy": {"offline_kv_blocks": 40, "offline_seq_slots": 8}}, blocks=BLOCKS_OF_FEW
    )
    host.add(Ask(id="reader", prompt=document + text(rng, 10), output=300))
    host.step()
    for number in range(4):
        host.add(Ask(id=f"off{number}", prompt=text(rng, 120), output=8, offline=True))
    host.step()
    host.step()
    assert host.driver.kv.free_blocks < 7
    host.add(Ask(id="second", prompt=document + text(rng, 220), output=8))
    host.step()
    telemetry = host.driver.telemetry()
    assert (telemetry["online_running"], telemetry["preemptions"]) == (2, 1)
    assert len(host.ends(6)) == 6


@pytest.mark.parametrize("seed", [2, 3, 4])
def test_preempted_requests_resume_with_the_tokens_they_produced(
    host: EngineHost, seed: int
) -> None:
    """Invariant 4, with a KV cache that cannot hold everything."""
    asks = mixed_asks(seed, offline=14, online=8)
    host.use_stock()
    expected = host.run(asks)
    driver = host.use_weir({"policy": {**POLICY, "offline_kv_blocks": 40}}, blocks=41)
    rng = numbers(seed)
    waiting = [ask for ask in asks if not ask.offline]
    for ask in asks:
        if ask.offline:
            host.add(ask)
    done: dict[str, tuple[int, ...]] = {}
    for finished in host.steps():
        done.update(finished)
        idle = not host.engine.has_unfinished_requests()
        if waiting and (idle or rng.random() < 0.2):
            host.add(waiting.pop())
    for ask in waiting:
        host.add(ask)
    for finished in host.steps():
        done.update(finished)
    assert done == expected
    assert driver.telemetry()["preemptions"] > 0


def test_offline_requests_wait_without_a_policy_and_run_with_one(host: EngineHost) -> None:
    driver = host.use_weir()
    rng = numbers(5)
    host.add(Ask(id="off", prompt=text(rng, 50), offline=True))
    host.add(Ask(id="on", prompt=text(rng, 50)))
    finished = [name for _ in range(40) for name in host.step()]
    assert finished == ["on"]
    assert host.scheduler.get_num_unfinished_requests() == 0  # parked: the loop may sleep
    assert len(host.scheduler.waiting) == 1
    assert host.core.weir_set_policy(POLICY) == {"accepted": True}
    assert host.scheduler.get_num_unfinished_requests() == 1
    assert [name for done in host.steps() for name in done] == ["off"]
    assert driver.telemetry()["offline_kv_blocks"] == 0


def test_a_line_is_expected_to_produce_no_more_than_it_may(host: EngineHost) -> None:
    """Where nothing says how much a line may produce, the agent's guess is the same for all."""

    def ended_first(guess: dict[str, int]) -> int:
        rng = numbers(8)
        host.use_weir({"policy": {**POLICY, "offline_kv_blocks": 40}}, blocks=41)
        for n in range(10):
            prompt = text(rng, 40)
            host.add(Ask(id=f"off{n}", prompt=prompt, output=1, offline=True, tag=guess))
        return len(host.step())

    assert ended_first({"expected_output_tokens": 256}) == ended_first({})


def test_class_decides_priority_whatever_the_client_asked(host: EngineHost) -> None:
    host.use_weir()
    host.engine.add_request(
        "greedy",
        {"prompt_token_ids": [97] * 10},
        _params(),
        priority=-100,
    )
    assert [request.priority for request in host.scheduler.requests.values()] == [0]


def test_a_request_with_a_broken_tag_ends_with_an_error_and_alone(host: EngineHost) -> None:
    host.use_weir()
    rng = numbers(6)
    host.add(Ask(id="broken", prompt=text(rng, 20), tag={"class": "both"}))
    host.add(Ask(id="fine", prompt=text(rng, 20), output=4))
    reasons = {}
    for _ in range(30):
        for result in host.engine.step():
            if result.finished:
                reasons[result.request_id] = result.outputs[0].finish_reason
    assert reasons == {"broken": "error", "fine": "length"}
    assert host.driver.telemetry()["requests"] == 0


def test_structured_output_waits_for_its_grammar_and_then_runs(host: EngineHost) -> None:
    from vllm.sampling_params import StructuredOutputsParams

    host.use_weir()
    ask = Ask(
        id="shaped",
        prompt=text(numbers(7), 30),
        output=8,
        params={"structured_outputs": StructuredOutputsParams(regex="[ab]{8}")},
    )
    done = host.run([ask])
    assert set(done["shaped"]) <= {ord("a"), ord("b")}


def test_a_line_ends_when_its_grammar_is_not_compiled_in_time(
    host: EngineHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other requests with grammars, online and offline, run meanwhile."""
    from vllm.sampling_params import StructuredOutputsParams

    # The other grammars must be done in that time, on a busy machine too.
    driver = host.use_weir({"policy": POLICY, "grammar_timeout_s": 3.0})
    manager = host.core.structured_output_manager
    go_on, compiled = threading.Event(), manager._create_grammar

    def compile_grammar(request: Any) -> Any:  # noqa: ANN401 - vLLM is not typed
        if request.request_id.startswith("endless"):
            assert go_on.wait(60)
        return compiled(request)

    monkeypatch.setattr(manager, "_create_grammar", compile_grammar)
    rng = numbers(8)
    for name, offline in (("endless", True), ("line", True), ("online", False)):
        params = {"structured_outputs": StructuredOutputsParams(regex="[ab]{8}")}
        ask = Ask(id=name, prompt=text(rng, 30), output=8, offline=offline, params=params)
        host.add(ask)
    ends = host.ends(3)
    go_on.set()
    assert ends["endless"][0] == "error"
    assert "took more than 3 s to compile" in ends["endless"][1]
    assert ends["line"][0] == ends["online"][0] == "length"
    assert driver.telemetry()["requests"] == 0


def test_only_online_requests_that_stream_are_measured(host: EngineHost) -> None:
    """The agent sees no others at the client, and compares."""
    from vllm.sampling_params import RequestOutputKind

    driver = host.use_weir({"policy": POLICY})
    rng = numbers(11)

    def counts() -> list[int]:
        telemetry = driver.telemetry()
        return [telemetry[metric]["count"] for metric in ("ttft", "tbt", "tpot")]

    for kind, offline, expected in (
        (RequestOutputKind.FINAL_ONLY, False, [0, 0, 0]),
        (RequestOutputKind.DELTA, True, [0, 0, 0]),
        (RequestOutputKind.DELTA, False, [1, 5, 1]),
    ):
        ask = Ask(
            id=f"{kind.name}-{offline}",
            prompt=text(rng, 40),
            output=6,
            offline=offline,
            params={"output_kind": kind},
        )
        host.run([ask])
        assert counts() == expected
    assert not driver.intake.streams


def test_aborted_requests_leave_nothing_behind(host: EngineHost) -> None:
    driver = host.use_weir({"policy": POLICY}, blocks=60)
    for ask in mixed_asks(8):
        host.add(ask)
    for _ in range(3):
        host.step()
    host.abort_all()
    host.step()
    telemetry = driver.telemetry()
    assert telemetry["free_kv_blocks"] == telemetry["total_blocks"] == 59
    assert telemetry["requests"] == telemetry["online_running"] == telemetry["offline_running"] == 0
    assert len(host.scheduler.waiting) == 0


def test_finishing_all_requests_at_once_also_empties_the_queue(host: EngineHost) -> None:
    """``ids=None``, as vLLM does on shutdown."""
    from vllm.v1.request import RequestStatus

    driver = host.use_weir({"policy": POLICY})
    for ask in mixed_asks(9):
        host.add(ask)
    host.step()
    host.scheduler.finish_requests(None, RequestStatus.FINISHED_ABORTED)
    assert len(host.scheduler.waiting) == 0
    assert driver.telemetry()["requests"] == 0
    host.abort_all()


def _params() -> object:
    from vllm import SamplingParams

    return SamplingParams(temperature=0, max_tokens=2, ignore_eos=True)


def test_metrics_are_told_less_often_and_all_the_same(
    host: EngineHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Prefix cache sums as in stock vLLM, levels that end at nothing, far fewer than steps."""
    asks = [ask for ask in mixed_asks(3) if not ask.offline]
    again = [replace(ask, id=f"again-{ask.id}") for ask in asks]

    def told() -> tuple[list[Any], int]:
        stats, turns = [], 0
        make = host.scheduler.make_stats

        def noted(*parts: object, **more: object) -> object:
            nonlocal turns
            turns += 1
            made = make(*parts, **more)
            stats.extend([] if made is None else [made])
            return made

        monkeypatch.setattr(host.scheduler, "make_stats", noted)
        host.run(asks)
        host.run(again)
        return stats, turns

    def sums(stats: list[Any]) -> list[int]:
        caches = [each.prefix_cache_stats for each in stats]
        return [sum(c.queries for c in caches), sum(c.hits for c in caches)]

    host.use_stock()
    stock, _ = told()
    host.use_weir({"partial_hits": False}).stats_pace = StatsPace(lambda: 0.0, always=False)
    weir, turns = told()
    assert sums(weir) == sums(stock)
    assert sums(stock)[1] > 0
    assert len(weir) == 3 < turns  # at first, and twice when the engine ran empty
    assert (weir[-1].num_running_reqs, weir[-1].num_waiting_reqs) == (0, 0)


def test_metrics_are_told_again_when_it_is_time_and_when_the_engine_runs_empty() -> None:
    now_s = 0.0
    pace = StatsPace(lambda: now_s, always=False)
    assert pace.due(running=True)
    assert not pace.due(running=True)
    assert pace.due(running=False)
    now_s = 10.0
    assert pace.due(running=True)
    assert StatsPace(lambda: 0.0, always=True).due(running=True)
