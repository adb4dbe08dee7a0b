"""Layer-wise piggybacking on small cases of our own; the paper shows it in a figure only."""

import pytest

from tests.engine.sched.scripted_lane import ScriptedLane
from weir_engine.sched.piggyback import HANDLING_S, PiggybackControl


class TenMillisecondsAToken:
    """A dense pass of 10 ms a token over all layers."""

    def dense_s(self, tokens: int) -> float:
        return 0.010 * tokens


class FallingTile:
    """Measured times also fall: four tokens take less than three."""

    def dense_s(self, tokens: int) -> float:
        return 0.040 if tokens < 4 else 0.030


def control(*ready: int) -> PiggybackControl:
    return PiggybackControl(ScriptedLane(ready=list(ready)), TenMillisecondsAToken())


def test_every_waiting_result_is_taken_while_there_is_room() -> None:
    # Two layers: a result adds a token to one of them, 5 ms.
    taken = control(2, 1).admit(tokens=8, room_s=0.1)
    assert taken.counts == (2, 1)
    assert taken.seconds == pytest.approx(0.015 + 3 * HANDLING_S)


def test_the_lowest_layers_go_first_until_the_objective_binds() -> None:
    taken = control(1, 4, 3).admit(tokens=8, room_s=0.0101)
    # A result takes 3.3 ms: one of the first layer, two of the second, none above.
    assert taken.counts == (1, 2, 0)
    assert taken.seconds <= 0.0101


def test_a_binding_layer_keeps_those_above_it_waiting_even_if_one_would_fit() -> None:
    assert control(0, 9, 1).admit(tokens=8, room_s=0.0101).counts == (0, 3, 0)


def test_without_room_or_results_nothing_is_taken() -> None:
    assert control(3, 3).admit(tokens=8, room_s=0.0) == ((), 0.0)
    assert control(0, 0).admit(tokens=8, room_s=1.0) == ((), 0.0)


def test_a_step_that_must_move_takes_one_whatever_the_room() -> None:
    assert control(0, 3, 2).admit(tokens=0, room_s=-1.0, must_move=True).counts == (0, 1, 0)
    assert control(0, 0).admit(tokens=0, room_s=-1.0, must_move=True) == ((), 0.0)


def test_a_request_that_goes_back_to_the_gpu_is_not_counted_on() -> None:
    assert control(2, 1).admit(tokens=8, room_s=1.0, leaving=1).counts == (1, 1)
    assert control(0, 1).admit(tokens=8, room_s=1.0, leaving=1).counts == (0, 1)


def test_the_reserve_is_what_all_results_take_but_never_most_of_the_step() -> None:
    some = control(2, 2)
    assert some.reserve_s(8, limit_s=1.0) == pytest.approx(0.020 + 4 * HANDLING_S)
    assert some.reserve_s(8, limit_s=0.040) == pytest.approx(0.010)
    assert control(0, 0).reserve_s(8, limit_s=1.0) == 0.0


def test_a_tile_that_is_faster_when_fuller_never_pays_for_others() -> None:
    lane = ScriptedLane(ready=[1, 1])
    taken = PiggybackControl(lane, FallingTile()).admit(tokens=3, room_s=1.0)
    assert taken.seconds == pytest.approx(2 * HANDLING_S)
