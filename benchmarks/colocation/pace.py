"""How far apart the online requests come, so that each machine is about as busy with them as any.

Without it online traffic alone saturates a machine that is half as fast, where no policy has
anything left to give, and on one three times as fast a window has too few requests for a P99 and
no policy is pressed. A pace is a stretch of time: of arrivals and of thinking. On a slow machine
(above 1) windows and leads are stretched too, so that they see as many requests; on a fast one
they stay, and see more, since gateways and agents adapt by the clock. Pure.
"""

from __future__ import annotations

from dataclasses import replace
from math import log

from benchmarks.colocation.calibrate import StepCost
from benchmarks.colocation.setup import TRACE, Workload
from weir_cli.loadlab.measure import Window
from weir_cli.loadlab.workload import OnlineRequest, OnlineShape, online_requests

ONLINE_SHARES = (0.3, 0.4)
"""Of the engine's time, the least and the most that online traffic alone takes beyond its steps'
fixed parts. With these it takes some 0.7: fast machines have the more steps."""
MOST_BUSY = 0.75
"""The most of it that they take in all: a machine whose steps cost much before their first token is
busy all the same."""
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


def tokens_per_s(shape: OnlineShape) -> float:
    """Output tokens a second of online requests."""
    requests = online_requests(shape, seed=0, duration_s=SAMPLE_S)
    return sum(request.max_tokens for request in requests) / SAMPLE_S


def pace_at(busy: float, *, c0_s: float, work: float, tokens: float) -> float:
    """The stretch at which an engine with online requests alone computes for that share of time.

    ``work`` is their ``share``, ``tokens`` their ``tokens_per_s``, both before it. An engine is
    idle while no request is there. Of requests that come at random as many are there as tokens come
    during a step, since each gets one of it, and none with the chance exp(-that). A step has its
    fixed part ``c0_s`` and as much of the work as there are steps in the time that it is busy.
    """
    return work / busy - tokens * c0_s / log(1 - busy)


def pace_for(cost: StepCost, shape: OnlineShape = TRACE.online) -> float:
    """The stretch at which a load takes a share within ``ONLINE_SHARES``; 1 if it may.

    More where the engine would be busy for more than ``MOST_BUSY`` of the time.
    """
    work, tokens = share(cost, shape), tokens_per_s(shape)
    least, most = ONLINE_SHARES
    pace = work / min(max(work, least), most)
    return max(pace, pace_at(MOST_BUSY, c0_s=cost.c0_s, work=work, tokens=tokens))


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
