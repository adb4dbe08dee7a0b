"""Seeded requests on a real vLLM: an answer does not depend on how its prompt was computed."""

from __future__ import annotations

import pytest

from tests.bridge.engine_host import Ask, EngineHost, numbers, text

pytestmark = [pytest.mark.vllm, pytest.mark.filterwarnings("ignore")]

PROMPT = text(numbers(5), 900)  # a step computes 512 tokens


@pytest.mark.parametrize("offline", [False, True])
def test_a_prompt_in_parts_gives_the_answer_of_its_seed(host: EngineHost, offline: bool) -> None:
    """VLLM turns the generator of a part back, which those of processors refuse: engines ended."""
    host.use_weir({"policy": {"offline_kv_blocks": 200, "offline_seq_slots": 8}})

    def answers(*seeds: int) -> list[tuple[int, ...]]:
        asks = [
            Ask(id=f"s{n}", prompt=PROMPT, offline=offline, params={"seed": n, "temperature": 1.0})
            for n in seeds
        ]
        done = host.run(asks)
        return [done[ask.id] for ask in asks]

    in_parts = answers(1, 2)
    assert answers(1, 2) == in_parts  # found in the cache: their prompts end in their first step
    assert in_parts[0] != in_parts[1]
