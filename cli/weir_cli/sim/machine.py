"""The replica that a simulation is given on the command line, and its objectives."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from weir_cli.errors import CliError, ExitStatus
from weir_cli.sim.options import check_choice, may_be_there, named, read_lines
from weir_engine.config import EngineShape, Metric, Policy, Slo
from weir_engine.errors import ConfigError
from weir_engine.sim.cost import StepCost
from weir_engine.sim.profile_cost import Backend, ProfileCost
from weir_engine.sim.profiles import PROFILES, load_profile
from weir_engine.sim.recorded import RecordedProfile
from weir_engine.sim.replica import Replica

SLO_HELP = "METRIC:STATISTIC:SECONDS, for instance tbt:p99:0.1 or ttft:mean:1; may be repeated."


def parse_slos(given: list[str]) -> tuple[Slo, ...]:
    """The objectives of ``--slo``.

    Raises:
        CliError: one that is not METRIC:STATISTIC:SECONDS.
    """
    made = []
    for text in given:
        try:
            metric, statistic, seconds = _three_parts(text)
            slo = Slo(metric=Metric(metric), statistic=statistic, threshold_s=float(seconds))
        except (ValueError, ConfigError) as error:
            raise CliError(
                f"--slo {text!r}: {error}",
                remedy="give METRIC:STATISTIC:SECONDS, as tbt:p99:0.1; metrics are ttft, tpot, tbt",
                status=ExitStatus.USAGE,
            ) from error
        made.append(slo)
    return tuple(made)


def _three_parts(text: str) -> list[str]:
    """The parts of one ``--slo``.

    Raises:
        ValueError: there are not three.
    """
    parts = text.split(":")
    if len(parts) != 3:
        raise ValueError(f"it has {len(parts)} of 3 parts")
    return parts


@dataclass(frozen=True, kw_only=True)
class Machine:
    """The replica of the command line."""

    cost: StepCost
    shape: EngineShape
    pause_s: float
    pause_request_s: float
    offline_kv: float


@dataclass(frozen=True, kw_only=True)
class EngineLimits:
    """What the options say that the engine takes at most."""

    max_batched_tokens: int
    max_seqs: int
    max_model_len_tokens: int


def read_machine(profile: str, backend: str, limits: EngineLimits, *, offline_kv: float) -> Machine:
    """The machine that ``--profile`` names: a bundled profile, or a file made by `weir profile`.

    A recorded engine takes no more than it took when it was recorded.

    Raises:
        CliError: there is no such profile or backend, the model does not fit, its longest request
            does not fit into the KV cache, or a limit is out of range.
    """
    check_choice("--backend", backend, [item.value for item in Backend])
    if profile not in PROFILES and not may_be_there(profile):
        raise CliError(
            f"--profile: {profile!r} is no bundled profile, and there is no such file",
            remedy=f"give a file made by `weir profile`, or one of {', '.join(PROFILES)}",
            status=ExitStatus.USAGE,
        )
    with named("--profile"):
        if profile in PROFILES:
            found = load_profile(profile)
            machine = Machine(
                cost=ProfileCost(profile=found, backend=Backend(backend)),
                shape=found.engine_shape(**asdict(limits)),
                pause_s=0.0,
                pause_request_s=0.0,
                offline_kv=offline_kv,
            )
        else:
            machine = _recorded(Path(profile), backend, limits, offline_kv)
    _check_length(machine.shape)
    return machine


def _check_length(shape: EngineShape) -> None:
    """Refuses what vLLM refuses at its start: a request that never fits stops all behind it.

    Raises:
        CliError: the longest request is larger than the KV cache.
    """
    kv_tokens = shape.total_blocks * shape.block_size_tokens
    if shape.max_model_len_tokens > kv_tokens:
        raise CliError(
            f"--max-model-len: {shape.max_model_len_tokens} tokens do not fit into the KV cache of "
            f"a replica, which holds {kv_tokens}",
            remedy=f"give {kv_tokens} or less, or a --profile with more KV",
            status=ExitStatus.USAGE,
        )


def _recorded(path: Path, backend: str, limits: EngineLimits, offline_kv: float) -> Machine:
    """A recorded engine.

    Raises:
        CliError: its steps cannot be put together from lanes.
        ConfigError: the file is no such profile.
    """
    if backend != Backend.SEQUENTIAL.value:
        raise CliError(
            f"--backend {backend}: {path} has whole steps, as its engine ran them",
            remedy="leave --backend out with a recorded profile",
            status=ExitStatus.USAGE,
        )
    try:
        plain = json.loads("\n".join(read_lines(path)))
    except ValueError as error:
        raise ConfigError(f"{path} is not JSON: {error}") from error
    found = RecordedProfile.of(plain)
    least = {name: min(most, getattr(found.shape, name)) for name, most in asdict(limits).items()}
    return Machine(
        cost=found.cost,
        shape=replace(found.shape, **least),
        pause_s=found.pause_s,
        pause_request_s=found.pause_request_s,
        offline_kv=offline_kv,
    )


def make_replica(machine: Machine, slos: tuple[Slo, ...], *, offline: bool, seed: int) -> Replica:
    """The replica to simulate; without offline work no policy lets any in."""
    shape = machine.shape
    policy = Policy(
        offline_kv_blocks=int(shape.total_blocks * machine.offline_kv) if offline else 0,
        offline_seq_slots=max(shape.max_seqs // 2, 1) if offline else 0,
    )
    return Replica(
        cost=machine.cost,
        shape=shape,
        slos=slos,
        policy=policy,
        plan_s=machine.pause_s,
        plan_request_s=machine.pause_request_s,
        seed=seed,
    )
