"""What became of a step, out of vLLM's outputs; latencies of streams are recorded on the way.

Reads only; the planner is told by ``driver``.
"""

from collections.abc import Callable, Container, Mapping
from typing import Any

from weir_agent.vllm_bridge.recorder import Recorder
from weir_agent.vllm_bridge.steps import StepTiming
from weir_engine.ids import RequestId
from weir_engine.request import Request
from weir_engine.sched.plan import StepOutcome


def read_outcome(
    outputs: Mapping[int, Any],
    known: Mapping[str, Request],
    timing: StepTiming,
    recorder: Recorder,
    *,
    streams: Container[str],
    in_flight: Callable[[RequestId], int],
) -> StepOutcome:
    """Tokens and ends of the requests in ``known``; others ended from outside meanwhile.

    ``outputs`` are vLLM's, by client. ``streams`` are the online requests whose tokens are handed
    out as they come: only those are measured at the client, too. ``in_flight`` tells how many later
    steps have a request.
    """
    tokens: dict[RequestId, int] = {}
    finished: list[RequestId] = []
    now_s = timing.ended_s
    for engine_outputs in outputs.values():
        for result in engine_outputs.outputs:
            request = known.get(result.request_id)
            if request is None:
                continue
            if result.new_token_ids:
                tokens[request.id] = len(result.new_token_ids)
                if request.id in streams:
                    _record_token(recorder, request, now_s)
            if result.finish_reason is not None:
                finished.append(request.id)
                if request.id in streams:
                    _record_pace(recorder, request, now_s, in_flight(request.id))
    return StepOutcome(
        started_s=timing.started_s,
        ended_s=now_s,
        tokens=tokens,
        finished=frozenset(finished),
        timed=timing.timed,
    )


def _record_token(recorder: Recorder, request: Request, now_s: float) -> None:
    if request.first_token_s is None:
        recorder.ttft.add(now_s, now_s - request.arrival_s)
    elif request.last_token_s is not None:
        recorder.tbt.add(now_s, now_s - request.last_token_s)


def _record_pace(recorder: Recorder, request: Request, now_s: float, in_flight: int) -> None:
    # From the first token on, as the agent measures it at the client: the difference of the two is
    # taken for the delay between engine and client.
    tokens = request.output_tokens - in_flight  # what comes after the last one is dropped
    if request.first_token_s is not None and tokens > 1:
        recorder.tpot.add(now_s, (now_s - request.first_token_s) / (tokens - 1))
