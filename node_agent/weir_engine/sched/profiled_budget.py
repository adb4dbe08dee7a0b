"""HyGen's step budget: one profiled limit, which only offline work must respect."""

from math import inf

from typing_extensions import override

from weir_engine.sched.account import OnlineLoad
from weir_engine.sched.budget import StaticBudget


class ProfiledBudget(StaticBudget):
    """Online work fills a step up to the engine's tokens; offline work up to the limit.

    Source: HyGen §4.1, where the online phase goes on until memory, batch or chunk is full.
    Deviation: Algorithm 1 passes the budget to the online phase as well. Then a small budget chunks
    online prompts and lengthens TTFT, the statistic no longer rises with the budget, and the
    bisection of §4.2 finds none for a TTFT objective.
    """

    @override
    def prefill_limit(self, load: OnlineLoad) -> float:
        """No limit but the engine's tokens."""
        return inf
