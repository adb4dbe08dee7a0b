"""What OmniServe's cells came to, as the claims and the page ask for it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from statistics import fmean

from benchmarks.papers.omniserve_run import Outcome

Seeds = list[dict[str, Outcome]]
"""By seed, the arms of one cell."""

LOADED = ("rate-1", "rate-3", "rate-4", "tpot-0.15", "kv-60k", "dailymail")
_BASELINES = ("llumnix-like", "neo-like", "sarathi-serve")
_NEAR_ZERO_S = 1.0  # a ratio to less than this many tokens a second says nothing


class Outcomes:
    """The cells that were measured; of any other every list is empty.

    ``field`` is one of ``Outcome``'s; each list has a value a seed.
    """

    def __init__(self, cells: Mapping[str, Seeds]) -> None:
        self._cells = cells

    def __contains__(self, cell: str) -> bool:
        return cell in self._cells

    def has(self, cell: str, arm: str) -> bool:
        """True where the arm ran in the cell."""
        return any(arm in seed for seed in self._cells.get(cell, ()))

    def each(self, cell: str, arm: str, field: str) -> list[float]:
        """One figure of an arm."""
        return [float(getattr(seed[arm], field)) for seed in self._cells.get(cell, ())]

    def mean(self, cell: str, arm: str, field: str) -> float:
        """The mean over the seeds, of a cell that was measured."""
        return fmean(self.each(cell, arm, field))

    def ratios(self, cell: str, of: str, base: str, field: str) -> list[float]:
        """One arm over another, on the seeds where the other has any."""
        return [a / b for a, b in self._pairs(cell, of, base, field) if b > 0]

    def above(self, cell: str, of: str, base: str, field: str) -> list[float]:
        """One arm less another."""
        return [a - b for a, b in self._pairs(cell, of, base, field)]

    def largest(self, field: str) -> tuple[float, str]:
        """OmniServe's largest mean ratio to a baseline of the paper that serves, and where it is.

        Where no baseline serves: 0 and "nowhere".
        """
        best = (0.0, "nowhere")
        for cell in LOADED:
            for base in _BASELINES:
                if not self.has(cell, base):
                    continue
                pairs = self._pairs(cell, "omniserve", base, field)
                if ratios := [a / b for a, b in pairs if b > _NEAR_ZERO_S]:
                    best = max(best, (fmean(ratios), f"{cell} over {base}"))
        return best

    def _pairs(self, cell: str, of: str, base: str, field: str) -> Iterator[tuple[float, float]]:
        return zip(self.each(cell, of, field), self.each(cell, base, field), strict=True)
