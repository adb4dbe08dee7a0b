"""The offline KV threshold, the offline sequence slots and the step budget of one pod."""

from __future__ import annotations

from dataclasses import dataclass

from weir_controlplane.forecast.choose import Forecast

POLICY_LEASE_S = 90.0


@dataclass(frozen=True, kw_only=True, slots=True)
class PolicyLimits:
    """What the operator allows. Shares of a pod's KV blocks, in [0, 1].

    ``fresh_fraction`` binds too while a pod has too little past to forecast from. Free blocks are
    kept for what online requests find again up to ``max_reuse_fraction``: batch work goes on.
    ``step_budget_s`` None: the engine decides from its SLOs.
    """

    max_offline_fraction: float = 0.9
    fresh_fraction: float = 0.3
    max_reuse_fraction: float = 0.75
    max_offline_slots: int = 256
    step_budget_s: float | None = None
    lease_s: float = POLICY_LEASE_S


@dataclass(frozen=True, kw_only=True, slots=True)
class PodKv:
    """KV blocks of a pod by its last telemetry.

    ``online_reuse_blocks``: free ones in which the next online requests find their prefixes.
    """

    total_blocks: int
    online_kv_blocks: int
    online_reuse_blocks: int
    offline_kv_blocks: int
    offline_running: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Policy:
    """What the pod is told, for ``lease_s`` seconds from the moment it asked.

    0 ≤ ``offline_kv_blocks`` ≤ total. ``method`` is "fresh" where there was no forecast;
    ``forecast_blocks`` is what was kept free for online work.
    """

    lease_s: float
    offline_kv_blocks: int
    offline_seq_slots: int
    step_budget_s: float | None
    method: str
    forecast_blocks: int


def decide(pod: PodKv, forecast: Forecast | None, limits: PolicyLimits) -> Policy:
    """What online is not expected to need, within the operator's limits.

    Falls (never rises) as forecast, present demand or the blocks that are found again rise. Online
    demand above the forecast is taken at its present value: the forecast has been proved wrong.
    Source: Echo §5.3 for the reserve; the fresh pod's share and the blocks found again are Weir's.
    """
    total = max(pod.total_blocks, 0)
    share = limits.max_offline_fraction
    if forecast is None:
        share = min(share, limits.fresh_fraction)
    expected = forecast.online_kv_blocks if forecast is not None else 0
    reused = min(pod.online_reuse_blocks, int(limits.max_reuse_fraction * total))
    online = min(max(expected, pod.online_kv_blocks, 0) + max(reused, 0), total)
    blocks = max(0, min(total - online, int(total * min(max(share, 0.0), 1.0))))
    return Policy(
        lease_s=limits.lease_s,
        offline_kv_blocks=blocks,
        offline_seq_slots=_slots(pod, blocks, limits),
        step_budget_s=limits.step_budget_s,
        method=forecast.method if forecast is not None else "fresh",
        forecast_blocks=online,
    )


def _slots(pod: PodKv, blocks: int, limits: PolicyLimits) -> int:
    """Sequences that the blocks can hold at the size that offline sequences have now.

    Half of a sequence's present size: shared prefixes make the next one cheaper than the average,
    and the threshold itself binds anyway. Without sequences to measure, blocks are all that binds.
    """
    if blocks <= 0:
        return 0
    if pod.offline_running <= 0 or pod.offline_kv_blocks <= 0:
        return min(limits.max_offline_slots, blocks)
    each = max(1.0, pod.offline_kv_blocks / pod.offline_running / 2)
    return min(limits.max_offline_slots, max(1, int(blocks / each)))
