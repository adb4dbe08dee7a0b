"""Online requests from the rows of public traces: arrival, lengths and what prefixes they share.

Times come out from 0 on, in seconds. Which file is of which format the caller says. Requests that
were answered with no token come out, too: a ``Cut`` leaves them out.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from weir_engine.errors import ConfigError
from weir_engine.ids import RequestClass, RequestId
from weir_engine.sim.trace_rows import MOST_TIME, Row, csv_rows, json_rows
from weir_engine.sim.workload import RequestSpec, Segment

_MOONCAKE_BLOCK_TOKENS = 512
_AZURE_COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
_PLAIN_COLUMNS = ("arrival_s", "input_tokens", "output_tokens")


def plain_csv(lines: Iterable[str]) -> tuple[RequestSpec, ...]:
    """Columns ``arrival_s, input_tokens, output_tokens``; others are ignored. Nothing is shared.

    Azure's conversion, ServeGen's samples and any trace of one's own have this form.

    Raises:
        ConfigError: a column is missing or a field is no number; row and field are named.
    """
    return _shifted(
        _alone(row, row.seconds("arrival_s"), "input_tokens", "output_tokens")
        for row in csv_rows(lines, needs=_PLAIN_COLUMNS)
    )


def azure_csv(lines: Iterable[str]) -> tuple[RequestSpec, ...]:
    """Azure's own columns: ``TIMESTAMP, ContextTokens, GeneratedTokens``, times as dates.

    Raises:
        ConfigError: a column is missing, or a field is no number or date.
    """
    made = []
    for row in csv_rows(lines, needs=_AZURE_COLUMNS):
        stamp = row.text("TIMESTAMP").strip()
        try:
            time_s = datetime.fromisoformat(stamp[:26]).replace(tzinfo=UTC).timestamp()
        except ValueError:
            raise row.error("TIMESTAMP", "give a date and time, as 2023-11-16 18:15:46") from None
        made.append(_alone(row, time_s, "ContextTokens", "GeneratedTokens"))
    return _shifted(made)


def mooncake_jsonl(lines: Iterable[str]) -> tuple[RequestSpec, ...]:
    """``timestamp`` (ms), ``input_length``, ``output_length``, ``hash_ids`` of 512-token blocks.

    Equal ids are equal prefixes up to and including that block; the last block may be partial.

    Raises:
        ConfigError: a field is missing or of another kind.
    """
    made = []
    for row in json_rows(lines):
        left = row.count("input_length")
        segments: list[Segment] = []
        for block in row.items("hash_ids"):
            tokens = min(left, _MOONCAKE_BLOCK_TOKENS)
            if tokens > 0:
                segments.append(Segment(key=f"block-{block}", tokens=tokens))
            left -= tokens
        if left > 0:
            segments.append(Segment(key=_rest_key(str(row.number)), tokens=left))
        made.append(
            _spec(
                f"on-{row.number}",
                row.seconds("timestamp") / 1e3,
                segments,
                row.count("output_length", smallest=0),
            )
        )
    return _shifted(made)


def ragpulse_jsonl(lines: Iterable[str]) -> tuple[RequestSpec, ...]:
    """``arrival_s``, ``output_length`` and ``blocks`` as [id, tokens] in the order of the prompt.

    Raises:
        ConfigError: a field is missing or of another kind.
    """
    made = []
    for row in json_rows(lines):
        blocks = row.pairs("blocks")
        segments = [Segment(key=f"passage-{block}", tokens=n) for block, n in blocks if n > 0]
        if not segments:
            raise row.error("blocks", "give at least one block of a token or more")
        made.append(
            _spec(
                f"on-{row.number}",
                row.seconds("arrival_s"),
                segments,
                row.count("output_length", smallest=0),
            )
        )
    return _shifted(made)


def coding_jsonl(
    lines: Iterable[str], *, starts_s: Sequence[float], longest_tokens: int
) -> tuple[RequestSpec, ...]:
    """Coding sessions, one a line, each from its own start on: a start for every line not empty.

    A request's prompt is the blocks that ``ids`` names (inclusive ranges, local to the session).
    Those above ``longest_tokens`` with their output, which a ``Cut`` leaves out, have none of them.

    Raises:
        ConfigError: a field is missing or of another kind.
        ValueError: another number of starts than of sessions.
    """
    made: list[RequestSpec] = []
    for row, start_s in zip(json_rows(lines), starts_s, strict=True):
        # Files that were put together have two sessions of one name: the row tells them apart.
        name, size = f"{row.number}-{row.text('session')}", row.count("block_tokens")
        for i, entry in enumerate(row.items("requests")):
            if not isinstance(entry, dict):
                raise row.error("requests", "give objects with t, in, out and ids")
            request = Row(row.number, entry)
            tokens, output = request.count("in"), request.count("out", smallest=0)
            # Prompts of 100k tokens by the thousand would be gigabytes of blocks that nobody runs.
            fits = tokens + output <= longest_tokens
            segments = _blocks(request, name, size, tokens) if fits else []
            if sum(segment.tokens for segment in segments) < tokens:
                left = tokens - sum(segment.tokens for segment in segments)
                segments.append(Segment(key=f"{name}-{i}", tokens=left))
            spec = _spec(f"on-{name}-{i}", start_s + request.seconds("t"), segments, output)
            made.append(replace(spec, group=f"session-{name}"))
    return tuple(sorted(made, key=lambda spec: (spec.arrival_s, spec.id)))


def _blocks(request: Row, session: str, size: int, tokens: int) -> list[Segment]:
    segments: list[Segment] = []
    left = tokens
    for first, last in request.pairs("ids"):
        for block in range(first, last + 1):
            if left <= 0:
                return segments
            segments.append(Segment(key=f"{session}/{block}", tokens=min(size, left)))
            left -= size
    return segments


FORMATS: dict[str, Callable[[Iterable[str]], tuple[RequestSpec, ...]]] = {
    "csv": plain_csv,
    "azure": azure_csv,
    "mooncake": mooncake_jsonl,
    "ragpulse": ragpulse_jsonl,
}
"""Readers by the name a user gives; coding sessions need starts and are apart."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Cut:
    """A part of a trace: from ``start_s`` for ``seconds``, times multiplied by ``time_scale``.

    ``keep`` is the share of requests kept, evenly (every n-th); those above ``longest_tokens`` with
    their output are left out, and those without any output. ``seconds`` is before scaling.

    Raises:
        ConfigError: a value out of its range.
    """

    start_s: float = 0.0
    seconds: float | None = None
    time_scale: float = 1.0
    keep: float = 1.0
    longest_tokens: int = 1 << 30

    def __post_init__(self) -> None:
        if not (self.time_scale > 0 and 0 < self.keep <= 1 and self.start_s >= 0):
            raise ConfigError(
                f"cut: start_s {self.start_s}, time_scale {self.time_scale}, keep {self.keep}: "
                "give a start of 0 or more, a scale above 0 and a share above 0, at most 1"
            )

    def covers(self, spec: RequestSpec) -> bool:
        """Whether it arrives in the part."""
        end_s = float("inf") if self.seconds is None else self.start_s + self.seconds
        return self.start_s <= spec.arrival_s < end_s

    def of(self, specs: Sequence[RequestSpec]) -> tuple[RequestSpec, ...]:
        """The part, from time 0 on.

        Raises:
            ConfigError: ``time_scale`` takes a request beyond all times.
        """
        made: list[RequestSpec] = []
        taken = 0.0
        for spec in specs:
            if not (self.covers(spec) and spec.output_tokens):
                continue
            if spec.prompt_tokens + spec.output_tokens > self.longest_tokens:
                continue
            taken += self.keep
            if taken >= 1.0 - 1e-9:
                taken -= 1.0
                arrival_s = (spec.arrival_s - self.start_s) * self.time_scale
                if arrival_s > MOST_TIME:
                    raise ConfigError(
                        f"{spec.id} arrives at {arrival_s:g} s with all times multiplied by "
                        f"{self.time_scale:g}: multiply them by less, {MOST_TIME:g} s is the most"
                    )
                made.append(replace(spec, arrival_s=arrival_s))
        return tuple(made)


def peak_start_s(specs: Sequence[RequestSpec], *, window_s: float) -> float:
    """Where the busiest ``window_s`` begins, by tokens in and out that arrive in it.

    Raises:
        ConfigError: there are no requests.
    """
    if not specs:
        raise ConfigError("the trace has no requests: give another trace or a wider cut")
    best, best_s, held, left = -1, 0.0, 0, 0
    for spec in specs:
        held += spec.prompt_tokens + spec.output_tokens
        while specs[left].arrival_s <= spec.arrival_s - window_s:
            held -= specs[left].prompt_tokens + specs[left].output_tokens
            left += 1
        if held > best:
            best, best_s = held, specs[left].arrival_s
    return best_s


def as_offline(specs: Iterable[RequestSpec]) -> tuple[RequestSpec, ...]:
    """The same requests as offline work, all there at time 0.

    What a row has alone is no online row's prompt, whatever the number of that; blocks, passages
    and sessions stay what they are, for they may be shared with online requests.
    """
    return tuple(
        replace(
            spec,
            id=RequestId(f"off-{spec.id.removeprefix('on-')}"),
            klass=RequestClass.OFFLINE,
            arrival_s=0.0,
            segments=_offline_segments(spec),
        )
        for spec in specs
    )


def _offline_segments(spec: RequestSpec) -> tuple[Segment, ...]:
    own = (spec.id, _rest_key(spec.id.removeprefix("on-")))
    return tuple(
        replace(segment, key=f"off/{segment.key}") if segment.key in own else segment
        for segment in spec.segments
    )


def _rest_key(row: str) -> str:
    """The segment of a row's tokens that lie in none of its blocks."""
    return f"row-{row}"


def _alone(row: Row, time_s: float, prompt: str, output: str) -> RequestSpec:
    name = f"on-{row.number}"
    segment = Segment(key=name, tokens=row.count(prompt))
    return _spec(name, time_s, [segment], row.count(output, smallest=0))


def _spec(name: str, time_s: float, segments: Sequence[Segment], output: int) -> RequestSpec:
    return RequestSpec(
        id=RequestId(name),
        klass=RequestClass.ONLINE,
        arrival_s=time_s,
        segments=tuple(segments),
        output_tokens=output,
    )


def _shifted(specs: Iterable[RequestSpec]) -> tuple[RequestSpec, ...]:
    ordered = sorted(specs, key=lambda spec: spec.arrival_s)
    if not ordered:
        raise ConfigError("the trace has no requests: give a file with at least one row")
    first_s = ordered[0].arrival_s
    return tuple(replace(spec, arrival_s=spec.arrival_s - first_s) for spec in ordered)
