"""BlendServe in the simulator: a batch ordered by compute density, against DFS and shuffled.

Set-up of the paper: Llama-3.1-8B on an A100 80 GB, 60 GB for KV, four mixes of chat, long
generation and exams. GPU time only, as the paper measures it, without the host's part of a step.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace

import numpy as np

from benchmarks.papers.blendserve_case import Case, Outcome
from benchmarks.papers.blendserve_cells import (
    A100,
    ARMS,
    DECLARED,
    KV_BYTES,
    REQUESTS,
    SPLITS,
    Cell,
    cells,
)
from benchmarks.papers.blendserve_report import (
    claims,
    not_run,
    notes,
    run_table,
    split_claims,
    split_table,
)
from benchmarks.papers.blendserve_run import run_arm
from benchmarks.papers.blendserve_split import SplitOutcome, splits
from benchmarks.papers.blendserve_workload import TRACES, Lengths, mix
from benchmarks.papers.paper import Options, PaperResult, kept, parallel
from weir_engine.pool.density import DensityModel
from weir_engine.sim.profiles import HardwareProfile, StepBatch, load_profile
from weir_engine.sim.profiles.attention import Attention
from weir_engine.sim.profiles.timing import KernelTiming


@dataclass(frozen=True, kw_only=True, slots=True)
class _Job:
    cell: Cell
    options: Options


def _run(job: _Job) -> Outcome | None:
    plain = kept(job.options, "blendserve", job.cell.name, lambda: asdict(_simulate(job)))
    return None if plain is None else Outcome(**plain)


def _simulate(job: _Job) -> Outcome:
    cell = job.cell
    profile = without_host(load_profile(cell.profile))
    if cell.apart:
        profile = kernels_apart(profile)
    model = density_model(profile)
    workload = mix(
        Lengths.read(job.options.data),
        cell.mix,
        requests=cell.requests,
        model=model,
        rng=np.random.default_rng(cell.seed),
    )
    case = Case(
        workload=workload,
        profile=profile,
        model=model,
        kv_tokens=int(KV_BYTES / profile.model.kv_bytes_per_token),
        factor=cell.factor,
        interference=cell.interference,
        seed=cell.seed,
    )
    return run_arm(case, ARMS[cell.arm])


def without_host(profile: HardwareProfile) -> HardwareProfile:
    """The profile without what the host adds to a step: the paper counts GPU time only."""
    if not isinstance(profile.timing, KernelTiming):
        return profile
    return replace(profile, timing=replace(profile.timing, fixed_s=0.0, request_s=0.0))


class ApartAttention:
    """Prefills and decodes in kernels of their own, each as measured without the other."""

    def __init__(self, attention: Attention) -> None:
        self._attention = attention

    def us(self, batch: StepBatch) -> tuple[float, float, float]:
        """Prefill, decode and deviation."""
        prefill_us, _, deviation = self._attention.us(
            batch._replace(decodes=0, context_tokens=0, shortest_tokens=0, longest_tokens=0)
        )
        _, decode_us, _ = self._attention.us(batch._replace(prefills=()))
        return prefill_us, decode_us, deviation


def kernels_apart(profile: HardwareProfile) -> HardwareProfile:
    """The profile with attention as NanoFlow runs it: no prefill in the kernel of the decodes."""
    if not isinstance(profile.timing, KernelTiming):
        return profile
    attention = ApartAttention(profile.timing.attention)
    return replace(profile, timing=replace(profile.timing, attention=attention))


def density_model(profile: HardwareProfile) -> DensityModel:
    """Peaks of the profile's device, as the paper computes densities."""
    return DensityModel(
        parameters=profile.model.parameters,
        hidden=profile.model.hidden,
        kv_features=profile.model.kv_heads * profile.model.head_dim,
        layers=profile.model.layers,
        flops_s=profile.gpu.flops,
        bandwidth_bytes_s=profile.gpu.bandwidth_bytes_s,
    )


def run(options: Options) -> PaperResult:
    """The four traces with all arms, RTX PRO 6000, sensitivities, and the split over replicas."""
    todo = cells(options)
    outcomes = parallel(options, _run, [_Job(cell=cell, options=options) for cell in todo])
    found = dict(zip(todo, outcomes, strict=True))
    runs = {cell: outcome for cell, outcome in found.items() if outcome is not None}
    ways = _splits(options)
    missing = [cell for cell in todo if cell not in runs]
    return PaperResult(
        claims=(*claims(runs), *split_claims(ways)),
        notes=(*notes(runs), *not_run(missing)),
        tables=(run_table(runs), split_table(ways)),
    )


def _splits(options: Options) -> dict[str, list[SplitOutcome]]:
    """Each trace cut for some numbers of replicas; lengths are known here."""
    model = density_model(load_profile(A100))
    lengths = Lengths.read(options.data)
    found: dict[str, list[SplitOutcome]] = {}
    for name, to in TRACES.items():
        rng = np.random.default_rng(options.seeds[0])
        workload = mix(lengths, to, requests=REQUESTS, model=model, rng=rng)
        found[name] = [
            split for count in SPLITS for split in splits(workload, model, count, DECLARED)
        ]
    return found
