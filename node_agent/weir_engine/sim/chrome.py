"""A run as a Chrome trace: steps on a line a replica, online requests above, counters below.

Open it in chrome://tracing or Perfetto. Plain values out; writing is the caller's.
"""

from collections.abc import Iterator, Sequence

from weir_engine.sim.records import RequestRecord, SimResult, StepRecord

Event = dict[str, object]


def chrome_events(results: Sequence[SimResult]) -> Iterator[Event]:
    """Trace events of all replicas, one process each; times in microseconds.

    Source: the Trace Event Format (complete, asynchronous, counter and metadata events).
    """
    for replica, result in enumerate(results):
        yield _name(replica, "process_name", f"replica {replica}")
        for step in result.steps:
            yield from _step(replica, step)
        for request in result.online:
            yield from _request(replica, request)


def _step(replica: int, step: StepRecord) -> Iterator[Event]:
    started_us = step.started_s * 1e6
    yield {
        "name": "co-located" if step.online_tokens and step.offline_computed_tokens else "step",
        "ph": "X",
        "pid": replica,
        "tid": 0,
        "ts": started_us,
        "dur": (step.ended_s - step.started_s) * 1e6,
        "args": {
            "online tokens": step.online_tokens,
            "offline tokens": step.offline_computed_tokens,
            "predicted ms": step.predicted_s * 1e3,
            "limit": step.limit_reason,
        },
    }
    yield {
        "name": "tokens",
        "ph": "C",
        "pid": replica,
        "ts": started_us,
        "args": {"online": step.online_tokens, "offline": step.offline_computed_tokens},
    }


def _request(replica: int, request: RequestRecord) -> Iterator[Event]:
    if not request.tokens_s:
        return
    marks = (("b", request.arrival_s), ("n", request.tokens_s[0]), ("e", request.tokens_s[-1]))
    for phase, time_s in marks:
        yield {
            "name": "first token" if phase == "n" else "online request",
            "cat": "online",
            "ph": phase,
            "id": request.id,
            "pid": replica,
            "ts": time_s * 1e6,
        }


def _name(replica: int, kind: str, name: str) -> Event:
    return {"name": kind, "ph": "M", "pid": replica, "args": {"name": name}}
