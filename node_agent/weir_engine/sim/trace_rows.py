"""Rows of trace files as checked values; an error names the row and the field. Text in, no files.

What a request becomes of a row is in ``traces`` and ``offline_sets``.
"""

import csv
import json
from collections.abc import Iterable, Iterator, Mapping
from math import isfinite

from weir_engine.errors import ConfigError

MOST_TIME = 1e13
"""The largest time in a trace: milliseconds since 1970 are below it, nanoseconds far above. Beyond
a thousand times as much the seconds that are added to a time go in its rounding."""


def csv_rows(lines: Iterable[str], *, needs: Iterable[str]) -> Iterator["Row"]:
    """The rows of a CSV with a header that has at least the columns ``needs``.

    Raises:
        ConfigError: no header, or a column is missing.
    """
    reader = csv.DictReader(lines)
    missing = [name for name in needs if name not in (reader.fieldnames or ())]
    if missing:
        raise ConfigError(
            f"trace header is {','.join(reader.fieldnames or ()) or 'empty'}: it lacks "
            f"{', '.join(missing)}"
        )
    for fields in reader:
        yield Row(reader.line_num, fields)  # blank lines are no rows, but lines of the file


def json_rows(lines: Iterable[str]) -> Iterator["Row"]:
    """One JSON object a line; empty lines are skipped.

    Raises:
        ConfigError: a line is no JSON object.
    """
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            fields = json.loads(line)
        except ValueError as error:
            raise ConfigError(
                f"trace row {number}: not JSON ({error}): one object a line"
            ) from None
        if not isinstance(fields, dict):
            raise ConfigError(f"trace row {number}: not an object: one object a line")
        yield Row(number, fields)


class Row:
    """One row; reading a field checks it. ``number`` is the line in the file, from 1."""

    __slots__ = ("_fields", "number")

    def __init__(self, number: int, fields: Mapping[str, object]) -> None:
        self.number = number
        self._fields = fields

    def __contains__(self, name: str) -> bool:
        return name in self._fields

    def error(self, name: str, remedy: str) -> ConfigError:
        """What is wrong with a field, to raise."""
        return ConfigError(
            f"trace row {self.number}: {name} is {self._fields.get(name)!r}: {remedy}"
        )

    def value(self, name: str) -> object:
        """A field as it stands; None where it is missing."""
        return self._fields.get(name)

    def seconds(self, name: str) -> float:
        """A time, from 0 to ``MOST_TIME``.

        Raises:
            ConfigError: it is none.
        """
        value = self._number(name, "give seconds of 0 or more")
        if not (isfinite(value) and value >= 0):
            raise self.error(name, "give seconds of 0 or more")
        if value > MOST_TIME:
            raise self.error(name, f"give at most {MOST_TIME:g}: is it in nanoseconds?")
        return value

    def count(self, name: str, *, smallest: int = 1) -> int:
        """A whole number of tokens, ``smallest`` or more.

        Raises:
            ConfigError: it is none.
        """
        remedy = f"give a whole number of {smallest} or more"
        value = self._number(name, remedy)
        if not (isfinite(value) and value == int(value) and value >= smallest):
            raise self.error(name, remedy)
        return int(value)

    def text(self, name: str) -> str:
        """A field as text.

        Raises:
            ConfigError: it is missing.
        """
        value = self._fields.get(name)
        if not isinstance(value, str | int | float):
            raise self.error(name, "give a name")
        return str(value)

    def items(self, name: str) -> list[object]:
        """A list.

        Raises:
            ConfigError: it is none.
        """
        value = self._fields.get(name)
        if not isinstance(value, list):
            raise self.error(name, "give a list")
        return value

    def pairs(self, name: str) -> list[tuple[int, int]]:
        """A list of pairs of whole numbers, 0 or more.

        Raises:
            ConfigError: it is none.
        """
        made = []
        for item in self.items(name):
            good = isinstance(item, list) and len(item) == 2 and all(_whole(n) for n in item)
            if not good:
                raise self.error(name, "give pairs of whole numbers of 0 or more")
            made.append((int(item[0]), int(item[1])))  # type: ignore[index]
        return made

    def _number(self, name: str, remedy: str) -> float:
        value = self._fields.get(name)
        try:
            return float(value)  # type: ignore[arg-type]
        except (TypeError, ValueError, OverflowError):
            raise self.error(name, remedy) from None


def _whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0
