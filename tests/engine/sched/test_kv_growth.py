"""The peak of requests that end one after the other, against going through all of them."""

from hypothesis import given
from hypothesis import strategies as st

from tests.engine.sched.mini_engine import MiniEngine, request
from weir_engine.request import Request
from weir_engine.sched.draft import StepDraft
from weir_engine.sched.kv_growth import GrowthToPeak

SIZE = 4
PARTS = st.tuples(st.integers(1, 60), st.integers(1, 40), st.integers(0, 39))
RUNNING = st.tuples(PARTS, st.integers(0, 59), st.none() | st.integers(1, 40))


def made(name: str, parts: tuple[int, int, int]) -> Request:
    prompt, output, done = parts
    new = request(name, online=False, prompt=prompt, output=output)
    new.output_tokens = min(done, output - 1)
    new.computed_tokens = new.known_tokens
    return new


def left(request: Request) -> int:
    """Tokens until the end that is expected of it; where that is past, it ends with the next."""
    return max(
        (request.expected_output_tokens or request.max_output_tokens) - request.output_tokens, 1
    )


def peak(requests: list[Request]) -> float:
    """Blocks when the most are held: whoever is left gets a token a step."""
    ends = sorted(((left(r), r.known_tokens - r.hit_tokens) for r in requests), reverse=True)
    held = [
        (sum(own for _, own in ends[:k]) + k * ends[k - 1][0]) / SIZE + k / 2
        for k in range(1, len(ends) + 1)
    ]
    return min(max(held), sum(-(-(left + own) // SIZE) for left, own in ends))


@given(
    running=st.lists(RUNNING, max_size=12),
    joining=st.lists(st.tuples(PARTS, st.integers(-1, 120)), min_size=1, max_size=4),
)
def test_a_request_needs_what_the_peak_with_it_is_above_now(
    running: list[tuple[tuple[int, int, int], int, int | None]],
    joining: list[tuple[tuple[int, int, int], int]],
) -> None:
    """To the digit where that is more than there is room for; else it is less than the room."""
    draft = StepDraft(MiniEngine().kv, block_size_tokens=SIZE, tokens=64, seqs=16, offline_seqs=0)
    there = []
    for number, (parts, hit_tokens, expected) in enumerate(running):
        there.append(made(f"r{number}", parts))
        there[-1].hit_tokens = min(hit_tokens, there[-1].prompt_tokens - 1)  # not its own
        there[-1].expected_output_tokens = expected
    growth = GrowthToPeak(draft, there)
    held = sum(-((r.hit_tokens - r.computed_tokens) // SIZE) for r in there)
    for number, (parts, room) in enumerate(joining):
        new = made(f"j{number}", parts)
        whole = -(-new.known_tokens // SIZE)
        need = max(peak([*there, new]) - held, whole)
        told = growth.need(draft, new, 0, 0, room=room)
        assert told == (told.free, told.free)
        assert told.free == need if told.free > room else need <= told.free
        growth.admit(draft, new, 0, new.known_tokens)
        there.append(new)
        held += whole
