"""What a simulation is given on the command line: traces, offline sets, objectives."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from importlib import resources
from pathlib import Path

import numpy as np

from weir_cli.errors import CliError, ExitStatus
from weir_engine.config import EngineShape, Metric, Policy, Slo
from weir_engine.errors import ConfigError
from weir_engine.sim.cost import StepCost
from weir_engine.sim.offline_sets import (
    document_sizes,
    documents_like,
    from_lengths,
    questions_with_header,
)
from weir_engine.sim.profile_cost import Backend, ProfileCost
from weir_engine.sim.profiles import PROFILES, load_profile
from weir_engine.sim.recorded import RecordedProfile
from weir_engine.sim.replica import Replica
from weir_engine.sim.traces import FORMATS, Cut, as_offline, coding_jsonl
from weir_engine.sim.workload import (
    Documents,
    Lengths,
    RequestSpec,
    document_questions,
    poisson_times,
)

Specs = tuple[RequestSpec, ...]
TRACE_KINDS = (*FORMATS, "coding")
OFFLINE_KINDS = ("none", "synthetic", "lengths", "loogle", "mmlu", "trace")
TRACE_HELP = (
    "Online requests: [KIND:]FILE, KIND one of csv, azure, mooncake, ragpulse, coding; FILE may be "
    "compressed with gzip. Default: a bundled excerpt of Azure's conversations."
)
OFFLINE_HELP = (
    "Offline requests: none; synthetic[:DOCUMENTS]; lengths:FILE; loogle:FILE (document sizes); "
    "mmlu:QUESTIONS,HEADERS; trace:KIND:FILE."
)
SLO_HELP = "METRIC:STATISTIC:SECONDS, for instance tbt:p99:0.1 or ttft:mean:1; may be repeated."


@contextmanager
def _named(option: str) -> Iterator[None]:
    """Turns what the engine finds wrong into a sentence about an option.

    Raises:
        CliError: in place of a ConfigError inside.
    """
    try:
        yield
    except ConfigError as error:
        raise CliError(f"{option}: {error}", status=ExitStatus.USAGE) from error


def read_lines(path: Path) -> list[str]:
    """The lines of a file, gzip-compressed or not.

    Raises:
        CliError: it cannot be read.
    """
    try:
        with path.open("rb") as stream:
            packed = stream.read(2) == b"\x1f\x8b"
        if packed:
            with gzip.open(path, "rt", encoding="utf-8") as text:
                return text.read().splitlines()
        return path.read_text("utf-8").splitlines()
    except (OSError, EOFError, UnicodeDecodeError) as error:
        raise CliError(
            f"{path}: {error}", remedy="give a readable text file", status=ExitStatus.USAGE
        ) from error


@dataclass(frozen=True, kw_only=True)
class Load:
    """Which part of a trace is replayed: see ``Cut``; ``seconds`` is simulated time."""

    seconds: float | None
    start_s: float = 0.0
    time_scale: float = 1.0
    keep: float = 1.0
    seed: int = 0


def read_trace(given: str | None, load: Load, *, longest_tokens: int) -> Specs:
    """The online requests that ``--trace`` names, cut to the load and to the model's length.

    Raises:
        CliError: the file or its rows are no trace of that kind.
    """
    with _named("--trace"):
        if given is None:
            text = resources.files("weir_cli.demo").joinpath("data/azure2023_conv_excerpt.csv")
            specs = FORMATS["csv"](text.read_text("utf-8").splitlines())
        else:
            specs = _read_kind(given, load.seed, longest_tokens)
        cut = Cut(
            start_s=load.start_s,
            seconds=None if load.seconds is None else load.seconds / load.time_scale,
            time_scale=load.time_scale,
            keep=load.keep,
            longest_tokens=longest_tokens,
        )
        kept = cut.of(specs)
    if not kept:
        raise CliError(
            "--trace: no request is left of it",
            remedy="widen --start, --seconds, --keep or --max-model-len",
            status=ExitStatus.USAGE,
        )
    return kept


def _read_kind(given: str, seed: int, longest_tokens: int) -> Specs:
    kind, colon, name = given.partition(":")
    if not colon or kind not in TRACE_KINDS:
        kind, name = "csv", given
    lines = read_lines(Path(name))
    if kind != "coding":
        return FORMATS[kind](lines)
    # Sessions have no absolute start: one every five minutes on average.
    rng = np.random.default_rng((seed, 20))
    starts = poisson_times(rng, rate_s=1 / 300, duration_s=300.0 * max(len(lines), 1))
    return coding_jsonl(lines, starts_s=starts, longest_tokens=longest_tokens)


def read_offline(given: str, *, seed: int, longest_tokens: int) -> Specs:
    """The offline requests that ``--offline`` names; those too long for the model are left out.

    Raises:
        CliError: an unknown kind, or a file that is none of that kind.
    """
    kind, _, rest = given.partition(":")
    rng = np.random.default_rng((seed, 21))
    readers: dict[str, Callable[[], Specs]] = {
        "none": lambda: (),
        "synthetic": lambda: _synthetic(rng, rest),
        "lengths": lambda: from_lengths(read_lines(Path(rest))),
        "loogle": lambda: documents_like(
            rng, document_sizes(read_lines(Path(rest))), longest_tokens=longest_tokens
        ),
        "mmlu": lambda: _mmlu(rest),
        "trace": lambda: as_offline(_read_kind(rest, seed, longest_tokens)),
    }
    if kind not in readers:
        raise CliError(
            f"--offline: {kind!r} is no kind of offline set",
            remedy=f"give one of {', '.join(OFFLINE_KINDS)}",
            status=ExitStatus.USAGE,
        )
    with _named("--offline"):
        specs = readers[kind]()
    return tuple(s for s in specs if s.prompt_tokens + s.output_tokens <= longest_tokens)


def _synthetic(rng: np.random.Generator, count: str) -> Specs:
    """Documents with eight questions each.

    Raises:
        CliError: the count is none.
    """
    if count and not (count.isdigit() and int(count) > 0):
        raise CliError(
            f"--offline synthetic:{count}",
            remedy="give a number of documents above 0",
            status=ExitStatus.USAGE,
        )
    documents = Documents(
        count=int(count or 2000),
        questions=8,
        document=Lengths(median=2500, sigma=0.4, low=200, high=6000),
        question=Lengths(median=60, sigma=0.5, low=10, high=400),
        output=Lengths(median=120, sigma=0.5, low=8, high=500),
    )
    return document_questions(rng, documents)


def _mmlu(rest: str) -> Specs:
    """MMLU's questions behind their headers.

    Raises:
        CliError: not two files.
    """
    questions, comma, headers = rest.partition(",")
    if not comma:
        raise CliError(
            f"--offline mmlu:{rest}",
            remedy="give two files: mmlu:QUESTIONS,HEADERS",
            status=ExitStatus.USAGE,
        )
    return questions_with_header(read_lines(Path(questions)), read_lines(Path(headers)))


def parse_slos(given: list[str]) -> tuple[Slo, ...]:
    """The objectives of ``--slo``.

    Raises:
        CliError: one that is not METRIC:STATISTIC:SECONDS.
    """
    made = []
    for text in given:
        parts = text.split(":")
        try:
            metric, statistic, seconds = parts
            slo = Slo(metric=Metric(metric), statistic=statistic, threshold_s=float(seconds))
        except (ValueError, ConfigError) as error:
            raise CliError(
                f"--slo {text!r}: {error}",
                remedy="give METRIC:STATISTIC:SECONDS, as tbt:p99:0.1; metrics are ttft, tpot, tbt",
                status=ExitStatus.USAGE,
            ) from error
        made.append(slo)
    return tuple(made)


@dataclass(frozen=True, kw_only=True)
class Machine:
    """The replica of the command line."""

    cost: StepCost
    shape: EngineShape
    pause_s: float
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
        CliError: there is no such profile, the model does not fit, or a limit is out of range.
    """
    with _named("--profile"):
        if profile not in PROFILES and Path(profile).exists():
            return _recorded(Path(profile), backend, limits, offline_kv)
        found = load_profile(profile)
        return Machine(
            cost=ProfileCost(profile=found, backend=Backend(backend)),
            shape=found.engine_shape(**asdict(limits)),
            pause_s=0.0,
            offline_kv=offline_kv,
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
        seed=seed,
    )
