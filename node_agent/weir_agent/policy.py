"""Which policy holds now: the control plane's lease, then a forecast of our own, then online only.

Pure: the clock is an argument. Control-plane loss never hurts online traffic (design §4).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil, sqrt
from typing import Literal

from weir_agent import wire
from weir_agent.latency import Summary
from weir_agent.settings import SloSetting

Source = Literal["control_plane", "forecast", "online_only"]
FORECAST_SIGMAS = 2.0
HISTORY_S = 3_600.0
MIN_SAMPLES = 20
SAMPLE_S = 0.9  # a little less than the beats of a second, whose timers may be early


@dataclass(frozen=True, kw_only=True, slots=True)
class ActivePolicy:
    """What offline work may use for the next ``lease_s`` seconds, and who says so."""

    source: Source
    offline_kv_blocks: int
    offline_seq_slots: int
    step_budget_s: float | None
    lease_s: float | None

    def message(self, client_delay_s: Mapping[str, float]) -> dict[str, object]:
        """The dict that the scheduler takes."""
        return {
            "offline_kv_blocks": self.offline_kv_blocks,
            "offline_seq_slots": self.offline_seq_slots,
            "step_budget_s": self.step_budget_s,
            "lease_s": self.lease_s,
            "client_delay_s": dict(client_delay_s),
        }


ONLINE_ONLY = ActivePolicy(
    source="online_only", offline_kv_blocks=0, offline_seq_slots=0, step_budget_s=None, lease_s=None
)


class DemandHistory:
    """Online KV demand of the last hour, one sample a second at most."""

    def __init__(self, *, horizon_s: float = HISTORY_S) -> None:
        self._horizon_s = horizon_s
        self._samples: deque[tuple[float, int]] = deque(maxlen=int(horizon_s))

    def add(self, now_s: float, online_kv_blocks: int) -> None:
        """The demand at ``now_s``; of two within a second the larger counts."""
        if self._samples and now_s - self._samples[-1][0] < SAMPLE_S:
            seen_s, before = self._samples.pop()
            now_s, online_kv_blocks = seen_s, max(before, online_kv_blocks)
        self._samples.append((now_s, online_kv_blocks))
        while self._samples[0][0] < now_s - self._horizon_s:
            self._samples.popleft()

    def values(self) -> list[int]:
        """The demands, oldest first."""
        return [blocks for _, blocks in self._samples]


def forecast_blocks(history: Sequence[int]) -> int:
    """Online KV blocks to keep free: mean plus two standard deviations.

    A short history knows no spread yet: its peak counts too.

    Source: Echo §5.3, mean plus k sigma.
    """
    if not history:
        return 0
    mean = sum(history) / len(history)
    variance = sum((value - mean) ** 2 for value in history) / len(history)
    forecast = ceil(mean + FORECAST_SIGMAS * sqrt(variance))
    return max(forecast, *history) if len(history) < MIN_SAMPLES else forecast


@dataclass(frozen=True, kw_only=True, slots=True)
class Lease:
    """A policy of the control plane; ``sent_s`` is when the sync that brought it was sent."""

    policy: wire.Policy
    sent_s: float


def active_policy(
    lease: Lease | None,
    now_s: float,
    *,
    total_blocks: int,
    history: Sequence[int],
    reuse_blocks: int = 0,
) -> ActivePolicy:
    """The policy at ``now_s``.

    One lease length of the control plane's, one of our own forecast, then online only. Our own
    leaves free what the forecast over ``history`` says and ``reuse_blocks``, in which online
    requests find their prefixes.
    """
    if lease is None:
        return ONLINE_ONLY
    policy = lease.policy
    left_s = lease.sent_s + policy.lease_s - now_s
    if left_s > 0:
        return ActivePolicy(
            source="control_plane",
            offline_kv_blocks=policy.offline_kv_blocks,
            offline_seq_slots=policy.offline_seq_slots,
            step_budget_s=policy.step_budget_s,
            lease_s=left_s,
        )
    if left_s + policy.lease_s > 0:
        free = max(0, total_blocks - forecast_blocks(history) - reuse_blocks)
        return ActivePolicy(
            source="forecast",
            offline_kv_blocks=min(free, policy.offline_kv_blocks),
            offline_seq_slots=policy.offline_seq_slots,
            step_budget_s=policy.step_budget_s,
            lease_s=left_s + policy.lease_s,
        )
    return ONLINE_ONLY


def client_delays(
    slos: Sequence[SloSetting],
    at_client: Mapping[str, Summary],
    in_engine: Mapping[str, Mapping[str, float]],
) -> dict[str, float]:
    """Seconds between engine and client by SLO, as the difference of its own statistic.

    Both are to be of the same requests and as many values. At most half the threshold, and only
    from 20 samples on: a delay that is not known is none.
    """
    delays: dict[str, float] = {}
    for slo in slos:
        client, engine = at_client.get(slo.metric), in_engine.get(slo.metric)
        if client is None or engine is None:
            continue
        if client.count < MIN_SAMPLES or engine.get("count", 0) < MIN_SAMPLES:
            continue
        name = _nearest_statistic(slo.statistic)
        seen_s: float = getattr(client, name)
        delay_s = min(max(0.0, seen_s - float(engine.get(name, seen_s))), slo.threshold_s / 2)
        delays[slo.name] = max(delay_s, delays.get(slo.name, 0.0))
    return delays


def _nearest_statistic(statistic: str) -> str:
    if statistic == "mean":
        return "mean_s"
    percentile = int(statistic[1:])
    return "p50_s" if percentile < 75 else "p90_s" if percentile < 95 else "p99_s"
