"""The recorded steps of a live engine, as its agent writes them. Rows in, steps out.

Who records them, and where files are, is the caller's.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Self

from weir_engine.config import EngineShape
from weir_engine.errors import ConfigError
from weir_engine.latency.features import EMPTY_SHAPE, StepShape
from weir_engine.sim.trace_rows import Row, json_rows

_ENGINE_ROW = '{"engine"'
_SHAPE_FIELDS = tuple(each.name for each in fields(EngineShape))


@dataclass(frozen=True, kw_only=True, slots=True)
class RecordedStep:
    """A live engine's step: (new, computed) tokens of its prefills, contexts of its decodes.

    ``distinct_tokens`` are the computed tokens that it reads, those that several of its requests
    share counted once. ``pause_s`` is what lay between the step before and this one; None where the
    engine had been idle. ``after_prefill``: it followed at once on a step with a prefill.
    """

    prefills: tuple[tuple[int, int], ...]
    decodes: tuple[int, ...]
    seconds: float
    distinct_tokens: int
    pause_s: float | None = None
    after_prefill: bool = False

    @property
    def shape(self) -> StepShape:
        """Its sums."""
        shape = EMPTY_SHAPE
        for new_tokens, computed_tokens in self.prefills:
            shape = shape.with_prefill(new_tokens, computed_tokens)
        for context_tokens in self.decodes:
            shape = shape.with_decode(context_tokens)
        return shape


@dataclass(frozen=True, kw_only=True, slots=True)
class Recording:
    """The steps of one engine."""

    shape: EngineShape
    steps: tuple[RecordedStep, ...]

    @classmethod
    def read(cls, lines: Iterable[str]) -> Self:
        """From what an agent writes: the engine's shape at each start, then its steps.

        A step has ``prefills`` as [new, computed], ``decodes`` as contexts, ``seconds``,
        ``distinct_tokens`` (without them nothing was shared), and ``pause_s`` or null. Steps
        without work or without a duration are left out, and so is the last line of an engine that
        was killed, or still writes, where it is torn.

        Raises:
            ConfigError: a field is missing or of another kind (row and field are named), there is
                no shape, or it changes on the way.
        """
        shape: EngineShape | None = None
        steps: list[RecordedStep] = []
        prefilled = False
        for row in json_rows(_whole(lines)):
            if "engine" in row:
                found = engine_shape(row.value("engine"), f"recording row {row.number}: engine")
                if shape is not None and found != shape:
                    raise row.error("engine", "another engine's steps: give a file of one engine")
                shape, prefilled = found, False
                continue
            step = _step(row, prefilled=prefilled)
            prefilled = bool(step.prefills)
            if step.seconds > 0 and not step.shape.is_empty:
                steps.append(step)
        if shape is None:
            raise ConfigError("recording: no row has the engine's shape: record with an agent")
        return cls(shape=shape, steps=tuple(steps))


def _whole(lines: Iterable[str]) -> Iterator[str]:
    """The lines; an empty one for each that an engine did not come to end."""
    given = list(lines)
    for at, line in enumerate(given, start=1):
        ends = at == len(given) or given[at].startswith(_ENGINE_ROW)
        yield "" if ends and _is_torn(line) else line


def _is_torn(line: str) -> bool:
    try:
        json.loads(line)
    except ValueError:
        return True
    return False


def _step(row: Row, *, prefilled: bool) -> RecordedStep:
    """One step of a recording; ``prefilled``: the one before had a prefill.

    Raises:
        ConfigError: a field is missing or of another kind.
    """
    contexts = []
    for context in row.items("decodes"):
        if not isinstance(context, int) or context < 1:
            raise row.error("decodes", "give contexts of 1 token or more")
        contexts.append(context)
    prefills = tuple(row.pairs("prefills"))
    idle = "pause_s" not in row or row.value("pause_s") is None
    computed = sum(done for _, done in prefills) + sum(contexts) - len(contexts)
    return RecordedStep(
        prefills=prefills,
        decodes=tuple(contexts),
        seconds=row.seconds("seconds"),
        distinct_tokens=row.count("distinct_tokens", smallest=0)
        if "distinct_tokens" in row
        else computed,
        pause_s=None if idle else row.seconds("pause_s"),
        after_prefill=prefilled and not idle,
    )


def engine_shape(given: object, where: str) -> EngineShape:
    """An engine's shape out of a file.

    Raises:
        ConfigError: a field is missing, unknown or no whole number of 1 or more.
    """
    fields = given if isinstance(given, Mapping) else {}
    if set(fields) != set(_SHAPE_FIELDS) or not all(isinstance(n, int) for n in fields.values()):
        raise ConfigError(f"{where}: give whole numbers for {', '.join(_SHAPE_FIELDS)}")
    return EngineShape(**fields)
