"""Server-side counters: reads a Prometheus page and takes differences between two of them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import urlencode

from weir_cli.loadlab.streaming import HttpError, exchange

_LINE = re.compile(r"^([a-zA-Z_:][\w:]*)(\{[^}]*\})?\s+(\S+)", re.MULTILINE)
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


@dataclass(frozen=True, kw_only=True, slots=True)
class EngineCounters:
    """vLLM's own counters, both classes together, since the server started.

    ``computed_prompt_tokens`` are prompt tokens without prefix-cache hits; a prompt counts when its
    first token is made. ``cpu_s`` is the processor time of the engine process.
    """

    at_s: float
    prompt_tokens: int
    computed_prompt_tokens: int
    generation_tokens: int
    steps: int
    preemptions: int
    cpu_s: float


def parse_page(page: str) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """Samples by name and sorted labels; ``engine`` and ``model_name`` labels are left out."""
    samples: dict[tuple[str, tuple[tuple[str, str], ...]], float] = {}
    for name, labels, value in _LINE.findall(page):
        kept = sorted(
            pair for pair in _LABEL.findall(labels) if pair[0] not in {"engine", "model_name"}
        )
        samples[name, tuple(kept)] = float(value)
    return samples


async def read_page(host: str, port: int, *, names: Sequence[str] = ()) -> str:
    """The server's `/metrics` page; of an agent only the series ``names``, where there are any.

    The whole page costs its reader milliseconds too, and here tokens wait for them.

    Raises:
        HttpError: no 200.
    """
    query = urlencode([("name[]", name) for name in names])
    answer = await exchange(host, port, "GET", f"/metrics?{query}" if query else "/metrics")
    if answer.status in {307, 308}:
        answer = await exchange(host, port, "GET", "/metrics/")
    if answer.status != 200:
        raise HttpError(answer.status, answer.body)
    return answer.body.decode()


def engine_counters(
    samples: Mapping[tuple[str, tuple[tuple[str, str], ...]], float],
    *,
    at_s: float,
    cpu_s: float,
) -> EngineCounters:
    """The counters on a page; absent ones are 0."""

    def sample(name: str, *labels: tuple[str, str]) -> int:
        return int(samples.get((f"vllm:{name}", labels), 0.0))

    return EngineCounters(
        at_s=at_s,
        prompt_tokens=sample("prompt_tokens_total"),
        computed_prompt_tokens=sample("prompt_tokens_by_source_total", ("source", "local_compute")),
        generation_tokens=sample("generation_tokens_total"),
        steps=sample("iteration_tokens_total_count"),
        preemptions=sample("num_preemptions_total"),
        cpu_s=cpu_s,
    )
