"""Values that configure the scheduler: SLOs, engine shape, policy. Checked once, on construction.

No decision belongs here.
"""

from dataclasses import dataclass, field, fields
from enum import StrEnum

from weir_engine.errors import ConfigError

MOST_SLO_S = 86_400.0  # accounts square it


class Metric(StrEnum):
    """The latency that an SLO bounds.

    TTFT counts from a request's arrival, TBT is each time between two tokens, and TPOT their mean
    over one answer, from its first token on.
    """

    TTFT = "ttft"
    TPOT = "tpot"
    TBT = "tbt"


@dataclass(frozen=True, kw_only=True, slots=True)
class Slo:
    """One latency objective of the online class.

    ``statistic`` is ``"mean"`` or ``"p50"`` to ``"p99"``; ``threshold_s`` is in seconds, > 0.
    ``reference_s`` is what online traffic alone was measured to have (None: never measured): what
    offline work may cost is then known, instead of estimated from traffic whose bursts are not.

    Raises:
        ConfigError: an unknown statistic, or a time that is not above 0 and a day at most.
    """

    metric: Metric
    statistic: str
    threshold_s: float
    reference_s: float | None = None

    def __post_init__(self) -> None:
        if not 0 < self.threshold_s <= MOST_SLO_S:
            raise ConfigError(
                f"slo.threshold_s is {self.threshold_s}: give seconds above 0, {MOST_SLO_S} at most"
            )
        reference_s = 1.0 if self.reference_s is None else self.reference_s
        if not 0 < reference_s <= MOST_SLO_S:
            raise ConfigError(
                f"slo.reference_s is {self.reference_s}: give seconds above 0, or leave it out "
                f"({MOST_SLO_S} at most)"
            )
        if self.statistic != "mean":
            digits = self.statistic.removeprefix("p")
            known = self.statistic.startswith("p") and digits.isdecimal() and len(digits) <= 2
            if not (known and 50 <= int(digits) <= 99):
                raise ConfigError(
                    f"slo.statistic is {self.statistic!r}: give 'mean' or 'p50' to 'p99'"
                )

    @property
    def name(self) -> str:
        """What it bounds, such as ``ttft_p99``."""
        return f"{self.metric.value}_{self.statistic}"

    @property
    def is_mean(self) -> bool:
        """True for a mean: it is kept as an account of banked slack, not as a deadline."""
        return self.statistic == "mean"

    @property
    def tolerance_s(self) -> float | None:
        """Latency that offline work may add, 0 or more; None without a reference."""
        if self.reference_s is None:
            return None
        return max(0.0, self.threshold_s - self.reference_s)

    @property
    def quantile(self) -> float:
        """The percentile as a fraction, 0.5 to 0.99; 1.0 is never returned. Means give 0.5."""
        return 0.5 if self.is_mean else int(self.statistic[1:]) / 100


@dataclass(frozen=True, kw_only=True, slots=True)
class EngineShape:
    """What the engine can hold in one step and in all.

    ``max_batched_tokens`` bounds the tokens of one step, ``max_seqs`` the running requests,
    ``total_blocks`` the usable KV blocks of ``block_size_tokens`` each.

    Raises:
        ConfigError: a value below 1.
    """

    block_size_tokens: int
    total_blocks: int
    max_batched_tokens: int
    max_seqs: int
    max_model_len_tokens: int

    def __post_init__(self) -> None:
        for name in [each.name for each in fields(self)]:
            if getattr(self, name) < 1:
                raise ConfigError(f"engine.{name} is {getattr(self, name)}: give 1 or more")


@dataclass(frozen=True, kw_only=True, slots=True)
class Policy:
    """What the control plane allows offline work on one pod; every field is leased.

    ``offline_kv_blocks`` bounds the KV blocks referenced by offline requests only,
    ``offline_seq_slots`` the running offline requests, ``step_budget_s`` one step (None: the
    engine decides from its SLOs). ``expires_s`` is on the scheduler's clock; None never ends.
    ``client_delay_s`` is the measured time between engine and client, by ``Slo.name``: it is taken
    off the SLO's threshold. Online requests are never bound by any of these.

    Raises:
        ConfigError: a negative bound.
    """

    offline_kv_blocks: int
    offline_seq_slots: int
    step_budget_s: float | None = None
    expires_s: float | None = None
    client_delay_s: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.offline_kv_blocks < 0 or self.offline_seq_slots < 0:
            raise ConfigError(
                "policy.offline_kv_blocks and policy.offline_seq_slots must be 0 or more, got "
                f"{self.offline_kv_blocks} and {self.offline_seq_slots}"
            )
        if self.step_budget_s is not None and self.step_budget_s < 0:
            raise ConfigError(f"policy.step_budget_s is {self.step_budget_s}: give 0 or more")

    def alive(self, now_s: float) -> bool:
        """True while the lease has not run out at ``now_s``."""
        return self.expires_s is None or now_s < self.expires_s


ONLINE_ONLY = Policy(offline_kv_blocks=0, offline_seq_slots=0)
"""What holds when no policy is alive: no offline work at all."""
