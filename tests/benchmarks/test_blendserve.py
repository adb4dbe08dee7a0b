"""BlendServe's benchmark: workloads are mixed to what they say, and every arm runs all of it."""

from pathlib import Path

import numpy as np
import pytest

from benchmarks.papers.blendserve import density_model, kernels_apart, without_host
from benchmarks.papers.blendserve_case import Case, Outcome
from benchmarks.papers.blendserve_cells import ARMS, KV_BYTES, Cell, cells
from benchmarks.papers.blendserve_report import claims, not_run, notes
from benchmarks.papers.blendserve_run import blending_pays, run_arm
from benchmarks.papers.blendserve_split import splits
from benchmarks.papers.blendserve_workload import TRACES, Lengths, Mix, Source, mix
from benchmarks.papers.paper import Options
from weir_engine.errors import ConfigError
from weir_engine.pool.blend_order import tree_costs
from weir_engine.pool.density import LLAMA_8B_A100
from weir_engine.pool.density_tree import build_tree
from weir_engine.sim.profile_cost import Backend, Interference, ProfileCost
from weir_engine.sim.profiles import HardwareProfile, load_profile


def _lengths() -> Lengths:
    """Three chats, four videos, six questions on two subjects: made up."""
    return Lengths(
        chat=np.array([[600, 150], [1_400, 300], [1_000, 200]]),
        video=np.array([[150, 2_000], [100, 3_000], [140, 4_000], [120, 6_000]]),
        exam_subject=np.array([0, 0, 0, 1, 1, 1]),
        header_tokens=np.array([640, 1_280]),
        question_tokens=np.array([90, 120, 100, 80, 150, 110]),
    )


@pytest.mark.parametrize("name", TRACES)
def test_a_mix_has_the_density_and_the_sharing_it_was_made_for(name: str) -> None:
    to = TRACES[name]
    workload = mix(
        _lengths(), to, requests=20_000, model=LLAMA_8B_A100, rng=np.random.default_rng(1)
    )
    prompts = workload.prompts()
    outputs = workload.output_tokens.astype(np.float64)
    costs = tree_costs(build_tree(prompts), outputs, LLAMA_8B_A100)
    unshared_s = LLAMA_8B_A100.compute_s(prompts.tokens.astype(np.float64), outputs).sum()
    assert costs.root_density == pytest.approx(to.density, rel=0.05)
    assert 1 - costs.compute_s[0] / unshared_s == pytest.approx(to.sharing, rel=0.05)


def test_a_mix_that_no_parts_make_is_refused() -> None:
    with pytest.raises(ConfigError, match="no mix has density"):
        mix(
            _lengths(),
            Mix(density=1.0, sharing=0.95),
            requests=100,
            model=LLAMA_8B_A100,
            rng=np.random.default_rng(1),
        )


def test_only_exams_share_more_than_a_system_prompt() -> None:
    workload = mix(
        _lengths(),
        TRACES["trace1"],
        requests=300,
        model=LLAMA_8B_A100,
        rng=np.random.default_rng(1),
    )
    prompts = workload.prompts()
    hashes = [
        prompts.hashes[prompts.offsets[i] : prompts.offsets[i + 1]].tolist()
        for i in range(len(workload))
    ]
    chats = [hashes[i] for i in np.flatnonzero(workload.source == Source.CHAT)]
    exams = [hashes[i] for i in np.flatnonzero(workload.family == 1)]
    assert len({chat[0] for chat in chats}) == 1
    assert len({chat[1] for chat in chats}) == len(chats)
    assert len({tuple(exam[: 640 // 32]) for exam in exams}) == 1


def test_coarse_units_keep_lengths_within_rounding() -> None:
    workload = mix(
        _lengths(),
        TRACES["trace2"],
        requests=500,
        model=LLAMA_8B_A100,
        rng=np.random.default_rng(2),
    )
    coarse = workload.coarse(32)
    prompt = coarse.prompt_tokens.sum() * 32 / workload.prompt_tokens.sum()
    decodes = (coarse.output_tokens - 1).sum() * 32 / (workload.output_tokens - 1).sum()
    assert prompt == pytest.approx(1.0, abs=0.02)
    assert decodes == pytest.approx(1.0, abs=0.02)
    assert coarse.block_tokens == 1
    assert coarse.output_tokens[workload.source == Source.EXAM].tolist() == [1] * int(
        (workload.source == Source.EXAM).sum()
    )


@pytest.mark.parametrize("arm", ARMS)
def test_every_arm_runs_the_whole_batch(arm: str) -> None:
    profile = without_host(load_profile("a100-80gb-llama-3.1-8b"))
    model = density_model(profile)
    workload = mix(
        _lengths(), TRACES["trace2"], requests=300, model=model, rng=np.random.default_rng(3)
    )
    case = Case(
        workload=workload,
        profile=profile,
        model=model,
        kv_tokens=int(KV_BYTES / 20 / profile.model.kv_bytes_per_token),
        factor=32,
        interference=Interference(),
    )
    outcome = run_arm(case, ARMS[arm])
    assert outcome.tokens == workload.tokens
    assert outcome.seconds >= outcome.reached_optimum_s > 0
    assert outcome.seconds >= outcome.bound_s > outcome.optimum_s
    assert outcome.sharing <= outcome.best_sharing
    if arm in {"NanoFlow-DFS", "BlendServe"}:
        assert outcome.sharing >= 0.9 * outcome.best_sharing


def test_a_split_from_both_ends_keeps_every_replica_near_the_roots_density() -> None:
    """Cut in a row of the density order, one replica gets all exams and another all videos."""
    workload = mix(
        _lengths(),
        TRACES["trace1"],
        requests=20_000,
        model=LLAMA_8B_A100,
        rng=np.random.default_rng(4),
    )
    ways = {split.way: split for split in splits(workload, LLAMA_8B_A100, 4, Interference())}
    assert ways["both ends"].density_off < 0.1
    assert ways["both ends"].slowest < 1.05
    assert ways["both ends"].computed_again < 0.01
    assert ways["in a row"].density_off > 1.0
    assert ways["in a row"].slowest > 1.5


def test_no_two_runs_are_kept_under_one_name() -> None:
    todo = cells(Options(data=Path("unused")))
    assert len({cell.name for cell in todo}) == len(todo)
    assert {cell.arm for cell in todo if cell.part == "main"} == set(ARMS)


def _outcome(seconds: float) -> Outcome:
    return Outcome(
        tokens=1_000_000,
        seconds=seconds,
        sharing=0.39,
        best_sharing=0.4,
        steps=10,
        preemptions=0,
        compute_s=50.0,
        memory_s=30.0,
        optimum_s=60.0,
        bound_s=62.0,
        reached_optimum_s=65.0,
    )


def test_what_was_missed_stands_first_and_what_was_not_run_is_not_claimed() -> None:
    """BlendServe a quarter faster on trace 1, a tenth on trace 2, slower on RTX PRO 6000."""
    todo = cells(Options(data=Path("unused"), seeds=(1,)))
    seconds = {("main", 1.4): 80.0, ("main", 0.9): 91.0, ("rtx", 1.4): 125.0}
    runs: dict[Cell, Outcome] = {}
    for cell in todo:
        if cell.mix.sharing == 0.35 and cell.arm in {"NanoFlow-DFS", "BlendServe"}:
            ours = seconds.get((cell.part, cell.mix.density))
            if ours is not None:
                runs[cell] = _outcome(ours if cell.arm == "BlendServe" else 100.0)
    made = {claim.id: claim for claim in claims(runs)}
    assert made["blendserve/gain/trace1"].value == pytest.approx(25.0)
    assert made["blendserve/gain/trace1"].met
    assert made["blendserve/gain/trace2"].met is False
    assert made["blendserve/gain/trace3"].value is None
    assert made["blendserve/sharing"].value == pytest.approx(97.5)
    assert made["blendserve/rtx-pro-6000/gain"].value == pytest.approx(-20.0)
    first, second = notes(runs)
    assert "-20.0% against NanoFlow-DFS" in first
    assert "trace2 9.9%" in second
    assert "trace1 2" not in second
    (outstanding,) = not_run([cell for cell in todo if cell not in runs])
    assert f"{len(todo) - len(runs)} runs" in outstanding
    assert "vLLM-DFS (1.4, 35%)" in outstanding
    assert not_run([]) == []


def test_blending_pays_unless_prompts_slow_the_decodes_kernel_down() -> None:
    """RTX PRO 6000's one kernel for both was measured; apart, they cost what they cost alone."""

    def pays(profile: HardwareProfile) -> bool:
        return blending_pays(ProfileCost(profile=profile, backend=Backend.OVERLAPPED), 450_000)

    fused = without_host(load_profile("rtx-pro-6000-llama-3.1-8b"))
    assert not pays(fused)
    assert pays(kernels_apart(fused))
    assert pays(without_host(load_profile("a100-80gb-llama-3.1-8b")))
