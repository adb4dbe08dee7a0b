"""How far apart the online requests come, so that each machine is about as busy with them as any.

Without it online traffic alone saturates a machine that is half as fast, where no policy has
anything left to give, and on one three times as fast a window has too few requests for a P99 and
no policy is pressed. A pace is a stretch of time: of arrivals and of thinking. On a slow machine
(above 1) windows and leads are stretched too, so that they see as many requests; on a fast one
they stay, and see more, since gateways and agents adapt by the clock. Pure.
"""

from __future__ import annotations

from dataclasses import replace

from benchmarks.colocation.calibrate import StepCost
from benchmarks.colocation.setup import TRACE, Workload
from weir_cli.loadlab.measure import Window
from weir_cli.loadlab.workload import OnlineRequest, OnlineShape, online_requests

ONLINE_SHARES = (0.3, 0.4)
"""Of the engine's time, the least and the most that online traffic alone takes beyond its steps'
fixed parts. With these it takes some 0.7: fast machines have the more steps."""
SAMPLE_S = 1_000.0


def work_s(cost: StepCost, request: OnlineRequest) -> float:
    """Seconds that a request takes beyond its steps' fixed parts, none of its prompt cached."""
    prompt, output = len(request.prompt), request.max_tokens
    prefill_s = cost.prefill_s * prompt + cost.prefill_context_s * prompt * prompt / 2
    decode_s = output * (cost.decode_s + cost.decode_context_s * (prompt + output / 2))
    return prefill_s + decode_s


def share(cost: StepCost, shape: OnlineShape) -> float:
    """The share of time that online requests take beyond their steps' fixed parts."""
    requests = online_requests(shape, seed=0, duration_s=SAMPLE_S)
    return sum(work_s(cost, request) for request in requests) / SAMPLE_S


def pace_for(cost: StepCost, shape: OnlineShape = TRACE.online) -> float:
    """The stretch at which a load takes a share within ``ONLINE_SHARES``; 1 if it may."""
    unpaced = share(cost, shape)
    least, most = ONLINE_SHARES
    return unpaced / min(max(unpaced, least), most)


def paced_workload(workload: Workload, pace: float) -> Workload:
    """The same requests, ``pace`` times as far apart, after a lead of as many or more."""
    online = replace(
        workload.online,
        rate_per_s=workload.online.rate_per_s / pace,
        think_s=workload.online.think_s * pace,
    )
    return replace(workload, online=online, lead_s=workload.lead_s * max(1.0, pace))


def paced_window(window: Window, pace: float) -> Window:
    """The window of as many requests or more; what it waits for the last of them stays."""
    stretch = max(1.0, pace)
    return replace(window, ramp_s=window.ramp_s * stretch, measure_s=window.measure_s * stretch)
