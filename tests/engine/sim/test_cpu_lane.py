"""The CPU lane in virtual time: what bounds it, and that it keeps to the plan."""

import pytest

from weir_engine.config import Metric, Policy, Slo
from weir_engine.errors import ConfigError, InvariantError
from weir_engine.ids import RequestClass, RequestId
from weir_engine.sim.cpu_lane import AttentionLane, CpuHosts
from weir_engine.sim.loop import Simulation, Window
from weir_engine.sim.preset_run import preset_simulation
from weir_engine.sim.profile_cost import ProfileCost
from weir_engine.sim.profiles import load_profile
from weir_engine.sim.replica import Replica
from weir_engine.sim.workload import RequestSpec, Segment, online_from_rows

PROFILE = load_profile("rtx-pro-6000-llama-3.1-8b")
LAYERS = PROFILE.model.layers
A, B = RequestId("a"), RequestId("b")


def lane(**hosts: float) -> AttentionLane:
    return AttentionLane(PROFILE, CpuHosts(**hosts))  # type: ignore[arg-type]


def only_first(layer: int, count: int = 1) -> list[int]:
    return [count if at == layer else 0 for at in range(LAYERS)]


def test_a_result_is_there_after_the_kv_moved_and_a_layer_of_it_was_read() -> None:
    one = lane()
    one.take(A, 8000, now_s=1.0)
    moved_s = PROFILE.swap_s(8000) + PROFILE.cpu_exchange_s(1, remote=False)
    ready_s = 1.0 + moved_s + PROFILE.cpu_attention_s(8000)
    one.poll(1.0 + moved_s)
    assert one.next_s == pytest.approx(ready_s)
    assert sum(one.ready) == 0
    one.poll(ready_s + 1e-9)
    assert list(one.ready) == only_first(0)


def test_a_token_takes_one_step_a_layer() -> None:
    one = lane()
    one.take(A, 100, now_s=0.0)
    for layer in range(LAYERS):
        one.poll(float(layer + 1))
        assert list(one.ready) == only_first(layer)
        assert (A in one.between_tokens) == (layer == 0)
        done = one.advance(only_first(layer), float(layer + 1), 0.01)
        assert done == ((A,) if layer == LAYERS - 1 else ())
    assert one.between_tokens == (A,)


def test_dram_bandwidth_bounds_how_many_results_a_second_there_are() -> None:
    one = lane()
    names = [RequestId(f"r{i}") for i in range(20)]
    for name in names:
        one.take(name, 1000, now_s=0.0)
    each_s = PROFILE.cpu_attention_s(1000)
    start_s = PROFILE.swap_s(20_000) + 1.0
    one.poll(start_s)
    one.advance(only_first(0, 20), start_s, 0.0)
    exchange_s = PROFILE.cpu_exchange_s(1, remote=False)
    one.poll(start_s + exchange_s + 10.5 * each_s)
    assert sum(one.ready) == 10
    one.poll(start_s + exchange_s + 20.5 * each_s)
    assert sum(one.ready) == 20


def test_the_local_host_fills_first_then_the_remote_ones_evenly() -> None:
    a_host = 1000 * PROFILE.model.kv_bytes_per_token
    two = lane(remote=2, memory_bytes=a_host)
    assert two.room_tokens == 1000
    for name in "abcde":
        two.take(RequestId(name), 500, now_s=0.0)
    # Two on the local host, two and one on the others.
    assert two.room_tokens == 500
    two.take(RequestId("f"), 500, now_s=0.0)
    assert two.room_tokens == 0
    with pytest.raises(InvariantError, match="do not fit"):
        two.take(RequestId("g"), 1, now_s=0.0)


def test_a_slow_network_delays_the_move_to_a_remote_host() -> None:
    hosts = {"remote": 1, "memory_bytes": 1000 * PROFILE.model.kv_bytes_per_token}

    def second_ready_s(network_bytes_s: float) -> float:
        made = lane(**hosts, network_bytes_s=network_bytes_s)
        made.take(A, 1000, now_s=0.0)
        made.poll(10.0)
        made.take(B, 1000, now_s=10.0)
        made.poll(10.0)
        assert made.next_s is not None
        return made.next_s - 10.0

    size = 1000 * PROFILE.model.kv_bytes_per_token
    slower_s = second_ready_s(1.25e9) - second_ready_s(12.5e9)
    assert slower_s == pytest.approx(size / 1.25e9 - size / 12.5e9, rel=0.01)


def test_a_slow_network_delays_the_way_back_from_a_remote_host() -> None:
    size = 1000 * PROFILE.model.kv_bytes_per_token

    def landing_s(network_bytes_s: float) -> float:
        made = lane(remote=1, memory_bytes=size, network_bytes_s=network_bytes_s)
        made.take(A, 1000, now_s=0.0)
        made.take(B, 1000, now_s=0.0)
        made.poll(10.0)
        made.recall(B, 10.0)
        assert made.next_s is not None
        return made.next_s - 10.0

    for network_bytes_s in (12.5e9, 1.25e9):
        crossed_s = size / network_bytes_s + PROFILE.swap_s(1000)
        assert landing_s(network_bytes_s) == pytest.approx(crossed_s)


def test_requests_on_their_way_back_share_the_link_of_their_host() -> None:
    size = 1000 * PROFILE.model.kv_bytes_per_token
    made = lane(remote=1, memory_bytes=size, network_bytes_s=1.25e9)
    c = RequestId("c")
    made.take(A, 1000, now_s=0.0)
    made.take(B, 500, now_s=0.0)
    made.take(c, 500, now_s=0.0)
    made.poll(10.0)
    made.recall(B, 10.0)
    made.recall(c, 10.0)
    made.poll(10.0 + 0.5 * size / 1.25e9 + PROFILE.swap_s(500) + 1e-9)
    assert list(made.landing) == [c]
    assert made.next_s == pytest.approx(10.0 + size / 1.25e9 + PROFILE.swap_s(500))


def test_a_recalled_request_lands_after_its_kv_has_crossed_pcie() -> None:
    one = lane()
    one.take(A, 4000, now_s=0.0)
    one.poll(5.0)
    one.recall(A, 5.0)
    assert (len(one), list(one.landing), sum(one.ready)) == (0, [A], 0)
    assert one.next_s == pytest.approx(5.0 + PROFILE.swap_s(4000))
    one.poll(5.0 + PROFILE.swap_s(4000))
    assert not one.landing
    assert one.next_s is None


def test_what_was_dropped_leaves_no_result_behind() -> None:
    one = lane()
    one.take(A, 100, now_s=0.0)
    one.take(B, 200_000, now_s=0.0)
    one.drop(A)  # while its KV is on its way
    one.poll(1.0)
    assert list(one.ready) == only_first(0)
    one.advance(only_first(0), 1.0, 0.01)
    one.poll(1.002)
    one.drop(B)  # while a host serves it
    one.poll(9.0)
    assert sum(one.ready) == 0
    one.drop(B)  # again: no error
    assert one.room_tokens == int(CpuHosts().memory_bytes // PROFILE.model.kv_bytes_per_token)


def test_more_results_than_wait_are_an_error() -> None:
    with pytest.raises(InvariantError, match="0 wait"):
        lane().advance(only_first(3), 0.0, 0.01)


def test_results_cost_what_the_dense_modules_of_their_layers_take_more() -> None:
    one = lane()
    assert one.piggyback_s(200, [0] * LAYERS) == 0.0
    few, many = one.piggyback_s(200, only_first(0, 4)), one.piggyback_s(200, [64] * LAYERS)
    assert 0 < few < many
    four = AttentionLane(load_profile("a100-80gb-pcie-llama-2-70b-tp4"), CpuHosts())
    assert four.piggyback_s(200, [0, 8]) > 0  # all-reduces included


def test_a_profile_without_layers_has_no_lane() -> None:
    with pytest.raises(ConfigError, match="by layer"):
        AttentionLane(load_profile("a100-40gb-opt-13b-tp2"), CpuHosts())


# -- whole simulations ------------------------------------------------------------------------

SLOS = (
    Slo(metric=Metric.TTFT, statistic="p90", threshold_s=1.0),
    Slo(metric=Metric.TPOT, statistic="p90", threshold_s=0.05),
)


def offline(count: int, *, prompt: int = 1500, output: int = 12) -> tuple[RequestSpec, ...]:
    return tuple(
        RequestSpec(
            id=RequestId(f"off-{i}"),
            klass=RequestClass.OFFLINE,
            arrival_s=0.0,
            segments=(Segment(key=f"off-{i}", tokens=prompt),),
            output_tokens=output,
        )
        for i in range(count)
    )


def run(
    *,
    blocks: int = 600,
    seqs: int = 32,
    offline_count: int = 12,
    rate_s: float = 4.0,
    prompt: int = 700,
    refuse: bool = False,
) -> tuple[Simulation, AttentionLane]:
    shape = PROFILE.engine_shape(
        max_batched_tokens=1024, max_seqs=seqs, max_model_len_tokens=4096, kv_tokens=blocks * 16
    )
    replica = Replica(
        cost=ProfileCost(profile=PROFILE),
        shape=shape,
        slos=SLOS,
        policy=Policy(offline_kv_blocks=blocks, offline_seq_slots=16),
    )
    made = lane()
    rows = [(i / rate_s, prompt, 40) for i in range(int(8 * rate_s))]
    simulation = preset_simulation(
        replica,
        "omniserve",
        online=online_from_rows(rows),
        offline=Window(offline(offline_count), size=16),
        lane=made,
        may_refuse=refuse,
    )
    return simulation, made


def test_every_request_ends_once_wherever_it_decoded() -> None:
    simulation, made = run()
    result = simulation.run(until_s=60.0)
    assert result.offline_finished == 12
    assert len(result.online) == 32
    assert simulation.unfinished() == ()
    on_cpu = sum(step.cpu_tokens for step in result.steps)
    assert on_cpu > 0
    decoded = sum(step.offline_decoded_tokens for step in result.steps)
    assert decoded == 12 * 11
    assert sum(step.offline_served_tokens for step in result.steps) == 12 * (1500 + 11)
    assert len(made) == 0
    slow = [r for r in result.online if (r.tpot_s or 0.0) > 0.05]
    assert len(slow) <= 0.1 * len(result.online)


def test_a_request_that_moves_to_the_cpus_as_the_last_one_decodes_on_there() -> None:
    """It outgrew the threshold, and no arrival is to come that would wake the engine."""
    shape = PROFILE.engine_shape(
        max_batched_tokens=256, max_seqs=8, max_model_len_tokens=160, kv_tokens=160
    )
    replica = Replica(
        cost=ProfileCost(profile=PROFILE),
        shape=shape,
        slos=SLOS,
        policy=Policy(offline_kv_blocks=3, offline_seq_slots=4),
    )
    simulation = preset_simulation(
        replica, "omniserve", offline=Window(offline(1, prompt=24, output=40), size=4), lane=lane()
    )
    result = simulation.run(until_s=60.0)
    assert result.offline_finished == 1
    assert sum(step.cpu_tokens for step in result.steps) == 24 + 40 - 1 - 3 * 16


def test_what_decodes_on_the_cpus_ends_though_no_step_is_as_short_as_the_objective() -> None:
    """Steps with prompts in them move all the same while no online request is there."""
    shape = PROFILE.engine_shape(
        max_batched_tokens=256, max_seqs=8, max_model_len_tokens=160, kv_tokens=160
    )
    tight = Slo(metric=Metric.TPOT, statistic="p90", threshold_s=1e-4)
    replica = Replica(
        cost=ProfileCost(profile=PROFILE),
        shape=shape,
        slos=(SLOS[0], tight),
        policy=Policy(offline_kv_blocks=10, offline_seq_slots=4),
    )
    simulation = preset_simulation(
        replica, "omniserve", offline=Window(offline(2, prompt=24, output=4), size=4), lane=lane()
    )
    result = simulation.run(until_s=60.0)
    assert result.offline_finished == 2
    assert sum(step.cpu_tokens for step in result.steps) > 0


def test_unfinished_requests_are_told_with_the_tokens_they_have() -> None:
    simulation, _ = run(offline_count=0)
    simulation.run(until_s=0.3)
    (first, *_) = simulation.unfinished()
    assert first.arrival_s == 0.0
    assert 0 < len(first.tokens_s) < 40


def test_under_overload_admission_turns_some_away_and_fewer_of_the_others_are_late() -> None:
    def late(*, refuse: bool) -> tuple[float, int]:
        simulation, _ = run(rate_s=40.0, offline_count=2, blocks=16_000, seqs=256, refuse=refuse)
        result = simulation.run(until_s=8.0)
        answered = [r for r in (*result.online, *simulation.unfinished()) if r.tokens_s]
        refused = len([r for r in result.online if not r.tokens_s])
        return sum(r.ttft_s > 1.0 for r in answered) / len(answered), refused

    without, none = late(refuse=False)
    with_it, turned_away = late(refuse=True)
    assert none == 0
    assert turned_away > 0
    assert with_it < without


def test_a_request_that_nobody_could_serve_in_time_ends_without_a_token() -> None:
    simulation, _ = run(rate_s=0.125, prompt=60_000, offline_count=0, blocks=16_000, refuse=True)
    (refused,) = simulation.run(until_s=2.0).online
    assert refused.tokens_s == ()
    assert simulation.online_waiting_tokens == 0
