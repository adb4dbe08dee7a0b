"""What one step costs on this machine: fixed part, prefill and decode by context, over HTTP.

Each sample is the median of repeats on an otherwise idle server; the fit is plain least squares.
"""

from __future__ import annotations

import asyncio
import random
import time
from dataclasses import dataclass
from statistics import median

import numpy as np
import numpy.typing as npt

from weir_cli.loadlab.feeders import Target, send
from weir_cli.loadlab.processes import ServerError
from weir_cli.loadlab.records import RequestRecord, token_gaps_s
from weir_cli.loadlab.workload import pseudo_text

PREFILL_TOKENS = (32, 128, 256, 512, 1024, 1536)
DECODE_POINTS = ((1, 16), (4, 16), (16, 16), (1, 1500), (4, 1500), (12, 1500))
DECODE_OUTPUTS = 24
REPEATS = 3


@dataclass(frozen=True, kw_only=True, slots=True)
class StepCost:
    """Seconds of a step: ``c0 + prefill·n + prefill_ctx·n·(p + n/2) + decode·N + decode_ctx·Σctx``.

    ``http_s`` is what a first token takes beyond its step. ``error_share`` is the fit's mean
    absolute relative error over its own samples.
    """

    c0_s: float
    prefill_s: float
    prefill_context_s: float
    decode_s: float
    decode_context_s: float
    http_s: float
    error_share: float

    def prefill_us_per_token(self, tokens: int = 512) -> float:
        """Microseconds a token of a fresh prompt of that length."""
        return 1e6 * (self.prefill_s + self.prefill_context_s * tokens / 2)

    def decode_us(self, context: int = 1500) -> float:
        """Microseconds of one more decode at that context."""
        return 1e6 * (self.decode_s + self.decode_context_s * context)


async def calibrate(target: Target, seed: int = 0) -> StepCost:
    """Measures and fits; takes about 15 s on an idle server.

    Raises:
        ServerError: a request failed.
    """
    source = random.Random(f"calibrate {seed}")  # noqa: S311 - load, not secrets
    rows: list[list[float]] = []
    times: list[float] = []
    for tokens in PREFILL_TOKENS:
        samples = [await _first_token_s(target, source, tokens) for _ in range(REPEATS)]
        rows.append([1.0, tokens, tokens * tokens / 2, 0.0, 0.0, 1.0])
        times.append(median(samples))
    for requests, context in DECODE_POINTS:
        gap_s = await _decode_gap_s(target, source, requests, context)
        contexts = requests * (context + DECODE_OUTPUTS / 2)
        rows.append([1.0, 0.0, 0.0, requests, contexts, 0.0])
        times.append(gap_s)
    return fit(np.array(rows), np.array(times))


def fit(rows: npt.NDArray[np.float64], times: npt.NDArray[np.float64]) -> StepCost:
    """Least squares on relative error, with no negative part.

    A busy machine delivers several tokens at once: intervals of 0 say nothing and are left out.

    Raises:
        ServerError: too few intervals are left.
    """
    usable = times > 0
    rows, times = rows[usable], times[usable]
    if len(times) < rows.shape[1]:
        raise ServerError(f"only {len(times)} calibration points are usable: quieten the machine")
    weights = 1.0 / times
    active = list(range(rows.shape[1]))
    while True:
        solution, *_ = np.linalg.lstsq(rows[:, active] * weights[:, None], times * weights)
        negative = [index for index, value in zip(active, solution, strict=True) if value < 0]
        if not negative:
            break
        active = [index for index in active if index not in negative]
    full = np.zeros(rows.shape[1])
    full[active] = solution
    error = float(np.mean(np.abs(rows @ full - times) / times))
    c0, prefill, prefill_context, decode, decode_context, http = (float(x) for x in full)
    return StepCost(
        c0_s=c0,
        prefill_s=prefill,
        prefill_context_s=prefill_context,
        decode_s=decode,
        decode_context_s=decode_context,
        http_s=http,
        error_share=error,
    )


async def _first_token_s(target: Target, source: random.Random, tokens: int) -> float:
    prompt = pseudo_text(source, tokens)
    record = await _sent(target, prompt, 1)
    return record.events[0].at_s - record.sent_s


async def _sent(target: Target, prompt: str, max_tokens: int) -> RequestRecord:
    record = await send(target, "calibration", prompt, max_tokens, due_s=time.monotonic())
    if record.error is not None:
        raise ServerError(f"a calibration request of {len(prompt)} tokens failed: {record.error}")
    return record


async def _decode_gap_s(
    target: Target, source: random.Random, requests: int, context: int
) -> float:
    """The median gap while all requests decode; their prompts are in the cache."""
    prompts = [pseudo_text(source, context) for _ in range(requests)]
    for prompt in prompts:
        await _sent(target, prompt, 1)
    records = await asyncio.gather(*(_sent(target, prompt, DECODE_OUTPUTS) for prompt in prompts))
    first_s = max(record.events[0].at_s for record in records)
    gaps = [
        gap
        for record in records
        for gap, event in zip(token_gaps_s(record), record.events[1:], strict=False)
        if event.at_s > first_s
    ]
    return median(gaps)
