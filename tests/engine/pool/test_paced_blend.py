"""The order that keeps both lanes busy: who fits for how long, and at what pace compute goes."""

from collections.abc import Sequence
from itertools import count

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.engine.pool.requests import make_request, names
from weir_engine.errors import ConfigError, DuplicateRequestError, UnknownRequestError
from weir_engine.ids import RequestId
from weir_engine.pool.blend_work import Ahead, BlendWork, MemoryLane, Scan, fitting_steps
from weir_engine.pool.density import LLAMA_8B_A100
from weir_engine.pool.paced_blend import PacedBlendOrder
from weir_engine.request import Request, RequestState

WEIGHTS_ONLY = MemoryLane(weights_s=1.0, token_s=0.0)
PLANNED = 0.85


def _hint(
    scan: Scan, *, compute_s: float = 0.0, prompt_tokens: float = 0.0, decode_steps: float = 0.0
) -> BlendWork:
    return BlendWork(
        scan=scan, compute_s=compute_s, prompt_tokens=prompt_tokens, decode_steps=decode_steps
    )


def _ahead(hints: Sequence[BlendWork]) -> Ahead:
    memory = [hint.read_tokens for hint in hints if hint.scan is Scan.MEMORY]
    return Ahead(
        compute_s=sum(hint.compute_s for hint in hints),
        compute_side_tokens=sum(hint.read_tokens for hint in hints) - sum(memory),
        memory_side_tokens=sum(memory),
    )


def _order(
    hints: dict[str, BlendWork], *, kv_tokens: float, lane: MemoryLane = WEIGHTS_ONLY
) -> PacedBlendOrder:
    """All of them wait, and the batch has begun."""
    order = PacedBlendOrder(lane=lane, kv_tokens=kv_tokens, hint=lambda request: hints[request.id])
    for name in hints:
        order.add(make_request(name, ""))
    order.begin(_ahead(list(hints.values())))
    return order


def _admit(
    order: PacedBlendOrder, requests: Sequence[Request], hints: dict[str, BlendWork]
) -> None:
    """Their prompts are computed, and each has its first token."""
    for request in requests:
        order.taken(request.id)
        request.move(RequestState.RUNNING)
        request.computed_tokens = int(hints[request.id].prompt_tokens)
        request.output_tokens = 1


def test_an_output_fits_for_as_long_as_all_that_grow_beside_it_leave_room() -> None:
    """One of 40 tokens with 10 steps to go: both grow, 40 + 2 a step, until it ends at 50 + 10."""
    assert fitting_steps([], 100.0) == 100.0
    assert fitting_steps([(10.0, 40.0)], 60.0) == 60.0
    assert fitting_steps([(10.0, 40.0)], 59.0) == 9.5
    assert fitting_steps([(10.0, 40.0)], 39.0) == 0.0


@given(
    growing=st.lists(st.tuples(st.integers(1, 40), st.integers(0, 60)), max_size=6),
    room=st.integers(1, 400),
)
def test_what_fits_holds_no_more_than_the_room_at_any_step_and_a_step_more_does(
    growing: list[tuple[int, int]], room: int
) -> None:
    def held(step: float, of_new: float) -> float:
        """While a step runs, those that end with it still hold what they have."""
        new = step if step <= of_new else 0.0
        return new + sum(context + step for steps, context in growing if step <= steps)

    fits = fitting_steps(sorted(growing), float(room))
    ends = [float(steps) for steps, _ in growing]
    if sum(context for _, context in growing) <= room:
        assert all(held(step, fits) <= room + 1e-6 for step in (*ends, fits) if step <= fits)
    longer = fits + 0.01
    assert any(held(step, longer) > room for step in (*ends, longer) if step <= longer)


def test_the_longest_that_fits_begins_and_a_shorter_one_ends_before_its_memory_is_needed() -> None:
    """Ours: 850 tokens are planned with. 600 and 500 steps would hold 1,000 at step 500."""
    hints = {
        name: _hint(Scan.MEMORY, prompt_tokens=1.0, decode_steps=steps)
        for name, steps in (("six", 600.0), ("five", 500.0), ("one", 100.0))
    }
    order = _order(hints, kv_tokens=1000.0)
    first = order.candidates(8, 0.0)
    assert names(first) == ["six", "one"]
    _admit(order, first, hints)
    assert not order.candidates(8, 1.0)
    first[0].output_tokens = 200
    first[0].computed_tokens = 200
    first[1].move(RequestState.FINISHED)
    assert not order.candidates(8, 2.0)  # it will hold 600 when five has 400
    first[0].output_tokens = first[0].computed_tokens = 360
    assert names(order.candidates(8, 3.0)) == ["five"]


def test_a_prompt_takes_its_room_from_the_first_step_on() -> None:
    """Two that begin with nothing hold 400 tokens after 200 steps; with a prompt of 500, 900."""
    hints = {
        "first": _hint(Scan.MEMORY, decode_steps=600.0),
        "prompt": _hint(Scan.MEMORY, prompt_tokens=500.0, decode_steps=200.0),
        "none": _hint(Scan.MEMORY, decode_steps=200.0),
    }
    order = _order(hints, kv_tokens=1000.0)
    assert names(order.candidates(8, 0.0)) == ["first", "none"]


def test_long_outputs_take_no_more_than_half_of_the_places_of_a_step() -> None:
    hints = {f"l{i}": _hint(Scan.MEMORY, decode_steps=10.0) for i in range(9)}
    hints |= {f"e{i}": _hint(Scan.COMPUTE, compute_s=0.1) for i in range(9)}
    assert names(_order(hints, kv_tokens=1000.0).candidates(4, 0.0)) == ["l0", "l1", "e0"]


def test_a_step_computes_as_much_as_its_reads_take_in_the_ratio_of_what_is_left() -> None:
    """100 steps of one second, 50 seconds of compute: half a second of it a step."""
    hints = {"long": _hint(Scan.MEMORY, decode_steps=100.0)}
    hints |= {f"e{i}": _hint(Scan.COMPUTE, compute_s=0.25) for i in range(200)}
    order = _order(hints, kv_tokens=1000.0)
    first = order.candidates(64, 0.0)
    assert names(first) == ["long", "e0", "e1"]
    assert names(order.candidates(64, 0.0)) == names(first)  # asking changes nothing
    _admit(order, first, hints)
    assert not order.candidates(64, 0.0)
    assert names(order.candidates(64, 1.0)) == ["e2", "e3"]


def test_a_prompt_larger_than_a_step_is_paid_for_by_the_steps_after_it() -> None:
    hints = {"long": _hint(Scan.MEMORY, decode_steps=100.0)}
    hints |= {f"e{i}": _hint(Scan.COMPUTE, compute_s=2.0) for i in range(25)}
    order = _order(hints, kv_tokens=1000.0)
    given = []
    for step in range(9):
        found = order.candidates(64, float(step))
        _admit(order, found, hints)
        given.append([name for name in names(found) if name != "long"])
    assert given == [["e0"], [], [], [], ["e1"], [], [], [], ["e2"]]


def test_the_centre_has_its_share_of_memory_and_the_compute_end_the_rest_of_the_pace() -> None:
    """Chats read 2,000 tokens of context in 100 steps: 20 a step, which two of them hold."""
    hints = {"long": _hint(Scan.MEMORY, decode_steps=100.0)}
    hints |= {
        f"chat{i}": _hint(Scan.CENTRE, compute_s=1.0, prompt_tokens=19.5, decode_steps=1.0)
        for i in range(100)
    }
    hints |= {f"exam{i}": _hint(Scan.COMPUTE, compute_s=1.0) for i in range(300)}
    order = _order(hints, kv_tokens=1000.0)
    first = order.candidates(64, 0.0)
    assert names(first) == ["long", "chat0", "chat1", "exam0", "exam1"]
    _admit(order, first, hints)
    assert names(order.candidates(64, 1.0))[:2] == ["exam2", "exam3"]
    first[1].move(RequestState.FINISHED)
    assert names(order.candidates(64, 2.0))[:2] == ["chat2", "exam2"]


def test_reads_of_context_are_paid_for_in_the_pace() -> None:
    """With the reads of 100 tokens a step takes a second more, and as much compute goes with it."""
    lane = MemoryLane(weights_s=1.0, token_s=0.01)
    hints = {"long": _hint(Scan.MEMORY, prompt_tokens=100.0, decode_steps=100.0)}
    hints |= {f"e{i}": _hint(Scan.COMPUTE, compute_s=0.5) for i in range(500)}
    order = _order(hints, kv_tokens=1000.0, lane=lane)
    found = names(order.candidates(64, 0.0))
    # Left: 100 steps that read 15,000 tokens, 250 s, and as much compute; this one takes 2 s of it.
    assert found == ["long", "e0", "e1", "e2", "e3"]


def test_a_sample_runs_in_order_before_the_batch_is_known() -> None:
    hints = {f"s{i}": _hint(Scan.COMPUTE) for i in range(5)}
    order = PacedBlendOrder(
        lane=WEIGHTS_ONLY, kv_tokens=10.0, hint=lambda request: hints[request.id]
    )
    for name in hints:
        order.add(make_request(name, ""))
    first = order.candidates(3, 0.0)
    assert names(first) == ["s0", "s1", "s2"]
    _admit(order, first, hints)
    order.remove(RequestId("s3"))
    assert names(order.candidates(3, 1.0)) == ["s4"]


def test_an_idle_engine_is_given_something_whatever_the_plan_says() -> None:
    """Longer than all memory that is planned with: it runs alone, or nothing ever would."""
    hints = {"huge": _hint(Scan.MEMORY, decode_steps=5_000.0)}
    order = _order(hints, kv_tokens=1000.0)
    assert names(order.candidates(8, 0.0)) == ["huge"]


@settings(deadline=None, max_examples=60)
@given(
    longs=st.lists(st.tuples(st.integers(1, 20), st.integers(20, 120)), max_size=12),
    chats=st.lists(st.tuples(st.integers(1, 60), st.integers(1, 12)), max_size=25),
    exams=st.integers(0, 25),
)
def test_all_run_once_and_long_outputs_never_outgrow_what_is_planned(
    longs: list[tuple[int, int]], chats: list[tuple[int, int]], exams: int
) -> None:
    kv_tokens = 300.0
    hints = {
        f"l{i}": _hint(Scan.MEMORY, prompt_tokens=prompt, decode_steps=steps, compute_s=0.1)
        for i, (prompt, steps) in enumerate(longs)
    }
    hints |= {
        f"c{i}": _hint(Scan.CENTRE, prompt_tokens=prompt, decode_steps=steps, compute_s=1.0)
        for i, (prompt, steps) in enumerate(chats)
    }
    hints |= {f"e{i}": _hint(Scan.COMPUTE, compute_s=0.5) for i in range(exams)}
    order = _order(hints, kv_tokens=kv_tokens)
    running: list[Request] = []
    seen: list[str] = []
    for step in count():
        found = order.candidates(64, float(step))
        assert found or running or not len(order)
        if not found and not running:
            break
        for request in running:
            request.output_tokens += 1
            request.computed_tokens += 1
        _admit(order, found, hints)
        seen += names(found)
        running += found
        held = sum(r.computed_tokens for r in running if hints[r.id].scan is Scan.MEMORY)
        assert held <= PLANNED * kv_tokens + len(longs)  # a token each that a step rounds
        for request in running:
            if request.output_tokens > hints[request.id].decode_steps:
                request.move(RequestState.FINISHED)
        running = [request for request in running if request.state is RequestState.RUNNING]
    assert sorted(seen) == sorted(hints)


def test_one_that_is_cancelled_is_work_no_more() -> None:
    hints = {"long": _hint(Scan.MEMORY, decode_steps=100.0)}
    hints |= {f"e{i}": _hint(Scan.COMPUTE, compute_s=0.5) for i in range(200)}
    order = _order(hints, kv_tokens=1000.0)
    for i in range(100, 200):
        order.remove(RequestId(f"e{i}"))
    assert names(order.candidates(64, 0.0)) == ["long", "e0"]
    assert order.waiting(Scan.COMPUTE) == 100


def test_requests_are_known_once_and_leave_once() -> None:
    order = _order({"e": _hint(Scan.COMPUTE)}, kv_tokens=10.0)
    with pytest.raises(DuplicateRequestError):
        order.add(make_request("e", ""))
    order.remove(RequestId("e"))
    with pytest.raises(UnknownRequestError):
        order.taken(RequestId("e"))
    assert len(order) == 0


def test_a_duplicate_is_refused_where_a_hint_is_handed_out_once() -> None:
    """Whoever holds the batch may forget a hint as soon as it was asked for."""
    hints = {"e": _hint(Scan.COMPUTE)}
    order = PacedBlendOrder(
        lane=WEIGHTS_ONLY, kv_tokens=10.0, hint=lambda request: hints.pop(request.id)
    )
    order.add(make_request("e", ""))
    with pytest.raises(DuplicateRequestError):
        order.add(make_request("e", ""))
    assert names(order.candidates(8, 0.0)) == ["e"]


def test_no_memory_is_refused() -> None:
    with pytest.raises(ConfigError, match="kv_tokens"):
        PacedBlendOrder(lane=WEIGHTS_ONLY, kv_tokens=0.0, hint=lambda _: _hint(Scan.COMPUTE))


def test_a_device_reads_its_weights_and_context_at_its_bandwidth() -> None:
    """Llama-3.1-8B on A100: 16 GB of weights in 7.9 ms, 128 KiB of KV a token."""
    lane = MemoryLane.of(LLAMA_8B_A100)
    assert lane.weights_s == pytest.approx(7.88e-3, rel=0.01)
    assert lane.seconds(2.0, 1e6) == pytest.approx(2 * 7.88e-3 + 0.0643, rel=0.01)
