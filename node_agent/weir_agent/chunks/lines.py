"""One offline line: its body checked, run by the engine, its answer as a stored record."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import uuid
from collections.abc import Mapping
from random import Random
from typing import Any

import structlog

from weir_agent import wire
from weir_agent.backoff import Backoff
from weir_agent.chunks import asked, bodies
from weir_agent.chunks.pool import PooledLine
from weir_agent.engine import Engine, EngineBusyError, LineOutcome, OfflineLine

log = structlog.get_logger(__name__)

BUSY_PAUSE_S, BUSY_PAUSE_MOST_S = 0.1, 5.0
MEAN_WEIGHT = 0.1
FIRST_GUESS_TOKENS = 256  # the control plane's default for such lines, too


class OutputLengths:
    """The running mean of produced tokens by batch: what the next lines are expected to produce."""

    def __init__(self, *, batches: int = 1_000) -> None:
        self._batches = batches
        self._means: dict[str, float] = {}

    def saw(self, batch_id: str, output_tokens: float) -> None:
        """A line of the batch produced that many tokens a choice."""
        old = self._means.get(batch_id, output_tokens)
        self._means[batch_id] = old + MEAN_WEIGHT * (output_tokens - old)
        while len(self._means) > self._batches:
            self._means.pop(next(iter(self._means)))

    def expected(self, batch_id: str, bound_tokens: int | None) -> int:
        """The expectation within the line's own bound; the bound alone before anything is seen.

        A line without a bound may fill the model's context: for that KV blocks may never be free.
        """
        mean = self._means.get(batch_id)
        if mean is None:
            return FIRST_GUESS_TOKENS if bound_tokens is None else bound_tokens
        rounded = max(1, round(mean))
        return rounded if bound_tokens is None else min(rounded, bound_tokens)


class LineRunner:
    """Runs lines on an engine and writes their records."""

    def __init__(
        self,
        engine: Engine,
        *,
        bounds: bodies.BodyBounds,
        salt_key: bytes,
        random: Random,
    ) -> None:
        """``salt_key`` is secret: who knows a tenant's salt could probe its prefix cache."""
        self._engine = engine
        self._bounds = bounds
        self._result_max_bytes = bounds.result_max_bytes
        self._salt_key = salt_key
        self._random = random
        self._lengths = OutputLengths()

    def accept(self, pooled: PooledLine, *, deadline_s: float | None) -> OfflineLine | bytes:
        """The line as the engine takes it, or the record of its refusal.

        ``deadline_s`` is its batch's, on the machine's monotonic clock.
        """
        lease, line = pooled.lease, pooled.line
        request_id = f"batch_req_{uuid.uuid4().hex}"
        try:
            body = bodies.prepare(
                line.url,
                line.body,
                bounds=self._bounds,
                cache_salt=self._cache_salt(lease.tenant),
            )
        except bodies.BodyError as error:
            outcome = LineOutcome(status_code=400, body=error.as_body())
            return self._record(line.line, request_id, outcome)
        except Exception:  # a fault of ours must not hold the whole chunk up
            log.exception("line.fault", chunk_id=lease.chunk_id, line=line.line)
            return self.fault(line.line, request_id)
        most_tokens = asked.tokens_that_fill(
            line.url, body, result_max_bytes=self._result_max_bytes
        )
        bounds = (asked.output_tokens(body), most_tokens)
        return OfflineLine(
            chunk_id=lease.chunk_id,
            attempt=lease.attempt,
            line=line.line,
            request_id=request_id,
            url=line.url,
            body=body,
            tenant=lease.tenant,
            group=lease.prefix_group,
            deadline_s=deadline_s,
            expected_output_tokens=self._lengths.expected(
                lease.batch_id, min((b for b in bounds if b is not None), default=None)
            ),
            most_tokens=most_tokens,
            solo=lease.solo,
        )

    async def run(self, lease: wire.Lease, line: OfflineLine) -> bytes:
        """The record of the line's answer, whatever its status; waits while the engine is full.

        Raises:
            EngineGoneError: the engine died; the line has no answer.
        """
        pause = Backoff(first_s=BUSY_PAUSE_S, most_s=BUSY_PAUSE_MOST_S, random=self._random)
        while True:
            try:
                outcome = await self._engine.execute(line)
            except EngineBusyError:
                await asyncio.sleep(pause.pause_s())
                continue
            usage = _usage(outcome)
            if usage is not None and usage.output_tokens:
                choices = len(outcome.body.get("choices") or (None,))
                self._lengths.saw(lease.batch_id, usage.output_tokens / choices)
            return self._record(line.line, line.request_id, outcome, usage)

    def fault(self, line: int, request_id: str) -> bytes:
        """The record of a line that the agent itself could not run."""
        failed = wire.ResultLine(
            line=line,
            request_id=request_id,
            error=wire.ResultError(
                code="agent_fault", message="the agent could not run the line: see its log"
            ),
        )
        return failed.model_dump_json().encode() + b"\n"

    def _record(
        self,
        line: int,
        request_id: str,
        outcome: LineOutcome,
        usage: wire.Usage | None = None,
    ) -> bytes:
        record = wire.ResultLine(
            line=line,
            request_id=request_id,
            response=wire.ResultResponse(
                status_code=outcome.status_code, request_id=request_id, body=dict(outcome.body)
            ),
            usage=usage,
        )
        content = record.model_dump_json().encode() + b"\n"
        if len(content) <= self._result_max_bytes and not outcome.cut:
            return content
        refused = wire.ResultLine(
            line=line,
            request_id=request_id,
            error=wire.ResultError(
                code="result_too_large",
                message=f"the result has {len(content)} bytes"
                + (" and would have more" if outcome.cut else "")
                + f", and {self._result_max_bytes} are allowed: ask for fewer tokens, choices or "
                "log probabilities",
            ),
            usage=usage,
        )
        return refused.model_dump_json().encode() + b"\n"

    def _cache_salt(self, tenant: str) -> str:
        return hmac.new(self._salt_key, tenant.encode(), hashlib.sha256).hexdigest()


def _usage(outcome: LineOutcome) -> wire.Usage | None:
    usage: Any = outcome.body.get("usage")
    if not isinstance(usage, Mapping):
        return None
    details = usage.get("completion_tokens_details")
    reasoning = details.get("reasoning_tokens") if isinstance(details, Mapping) else 0
    return wire.Usage(
        input_tokens=usage.get("prompt_tokens") or 0,
        cached_tokens=outcome.cached_tokens,
        output_tokens=usage.get("completion_tokens") or 0,
        reasoning_tokens=reasoning or 0,
    )
