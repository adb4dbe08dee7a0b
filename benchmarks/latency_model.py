"""How well each latency model predicts steps it was not fitted on, noise of the profile included.

Run: python -m benchmarks.latency_model [--profile NAME ...] [--seeds N]. Writes
benchmarks/results/latency_model.json.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import mean

import numpy as np

from benchmarks import bounds
from benchmarks.claims import Claim, write_results
from weir_engine.config import EngineShape
from weir_engine.latency.features import EMPTY_SHAPE, StepShape
from weir_engine.latency.models import (
    MODEL_NAMES,
    FittedModel,
    GraphedModel,
    ModulewiseModel,
    create,
)
from weir_engine.latency.profile import profile_shapes
from weir_engine.sim.cost import Part
from weir_engine.sim.profile_cost import ProfileCost, batch_of
from weir_engine.sim.profile_probe import ProfileProbe
from weir_engine.sim.profiles import HardwareProfile, load_profile

# No step of the profiles is a graph: there that model is the one without.
MODELS = tuple(name for name in MODEL_NAMES if name != GraphedModel.name)
PROFILES = (
    "rtx-pro-6000-llama-3.1-8b",
    "a100-80gb-llama-2-7b",
    "a100-80gb-llama-3.1-8b",
    "a100-80gb-llama-2-70b-tp2",
    "a100-80gb-llama-2-70b-tp4",
    "a30-qwen-2-7b",
)
FITTED_STEPS = 400
JUDGED_STEPS = 800
TARGET = "<= 1"


@dataclass(frozen=True, kw_only=True)
class Errors:
    """Mean absolute relative errors in percent: of each model, and of the noise alone."""

    by_model: dict[str, float]
    noise: float


def steps(rng: np.random.Generator, shape: EngineShape) -> Iterator[list[Part]]:
    """Co-located steps without end: decodes of both classes, most with chunked prefills beside."""
    while True:
        parts: list[Part] = []
        decodes = int(rng.integers(0, min(shape.max_seqs // 2, 128) + 1))
        parts += [
            Part(tokens=1, computed_tokens=int(context))
            for context in np.clip(rng.lognormal(np.log(1200), 0.6, decodes), 16, 4000)
        ]
        room = shape.max_batched_tokens - decodes
        kind = rng.random()
        if kind < 0.75 or not parts:
            new_tokens = int(rng.integers(16, room))
            before = int(rng.integers(0, 4000)) if rng.random() < 1 / 3 else 0
            parts.append(Part(tokens=new_tokens, computed_tokens=before))
            if kind < 0.2 and room - new_tokens > 64:
                parts.append(
                    Part(tokens=int(rng.integers(16, room - new_tokens)), computed_tokens=0)
                )
        yield parts


def shape_of(parts: list[Part]) -> StepShape:
    """What the scheduler knows of a step."""
    shape = EMPTY_SHAPE
    for part in parts:
        if part.tokens == 1:
            shape = shape.with_decode(part.computed_tokens + 1)
        else:
            shape = shape.with_prefill(part.tokens, part.computed_tokens)
    return shape


def fitted(name: str, profile: HardwareProfile, shape: EngineShape, seed: int) -> FittedModel:
    """A model after what an agent measures at start and some hundred steps of its traffic."""
    cost = ProfileCost(profile=profile)
    rng = np.random.default_rng((seed, 1))
    limits = {
        "max_batched_tokens": shape.max_batched_tokens,
        "max_seqs": shape.max_seqs,
        "max_model_len_tokens": shape.max_model_len_tokens,
    }
    model = create(name)
    if name == ModulewiseModel.name:
        model = ModulewiseModel.profiled(ProfileProbe(profile, rng), **limits)
    for step in profile_shapes(**limits):
        parts = [Part(tokens=n, computed_tokens=done) for n, done in step.prefills]
        parts += [Part(tokens=1, computed_tokens=context) for context in step.decodes]
        model.update(step.shape, cost.seconds(parts, rng))
    traffic = steps(np.random.default_rng((seed, 2)), shape)
    for parts, _ in zip(traffic, range(FITTED_STEPS), strict=False):
        model.update(shape_of(parts), cost.seconds(parts, rng))
    model.refit()
    return model


def judge(profile: HardwareProfile, seed: int) -> Errors:
    """Every model on the same fresh steps."""
    shape = profile.engine_shape(max_batched_tokens=2048, max_seqs=256)
    models = {name: fitted(name, profile, shape, seed) for name in MODELS}
    cost = ProfileCost(profile=profile)
    rng = np.random.default_rng((seed, 3))
    errors: dict[str, list[float]] = {name: [] for name in models}
    noise = []
    fresh = steps(np.random.default_rng((seed, 4)), shape)
    for parts, _ in zip(fresh, range(JUDGED_STEPS), strict=False):
        measured = cost.seconds(parts, rng)
        noise.append(abs(cost.step_s(batch_of(parts)) / measured - 1))
        for name, model in models.items():
            errors[name].append(abs(model.predict(shape_of(parts)) / measured - 1))
    return Errors(
        by_model={name: 100 * mean(values) for name, values in errors.items()},
        noise=100 * mean(noise),
    )


def claim_of(profile: str, found: list[Errors]) -> Claim:
    """The module-wise model's claim; the others are reported beside it."""
    values = [errors.by_model[ModulewiseModel.name] for errors in found]
    return Claim(
        id=f"latency-model/{profile}",
        what=f"module-wise latency model on {profile}: mean error on steps not fitted, noise "
        "included (baseline: the noise alone)",
        unit="%",
        value=round(mean(values), 3),
        low=round(min(values), 3),
        high=round(max(values), 3),
        baseline=round(mean(errors.noise for errors in found), 3),
        target=TARGET,
    )


def table_of(found: list[Errors]) -> dict[str, float]:
    """Every model's error in percent, the mean over the seeds."""
    return {name: round(mean(errors.by_model[name] for errors in found), 3) for name in MODELS}


def main() -> None:
    """All profiles, all models, several seeds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--profile", choices=PROFILES, action="append")
    parser.add_argument("--seeds", type=bounds.count, default=3)
    given = parser.parse_args()
    seeds = list(range(1, given.seeds + 1))
    claims: list[Claim] = []
    errors: dict[str, dict[str, float]] = {}
    for name in given.profile or PROFILES:
        profile = load_profile(name)
        found = [judge(profile, seed) for seed in seeds]
        claims.append(claim_of(name, found))
        errors[name] = table_of(found)
        values = "  ".join(f"{model} {value:.2f}%" for model, value in errors[name].items())
        print(f"{name:28} noise {claims[-1].baseline:.2f}%  {values}", flush=True)
    command = shlex.join(["python", "-m", "benchmarks.latency_model", *sys.argv[1:]])
    write_results(
        "latency_model", claims, command=command, seeds=seeds, more={"errors_percent": errors}
    )


if __name__ == "__main__":
    main()
