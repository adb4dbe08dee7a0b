"""A live engine's recorded steps become the simulator's cost of that engine, noise included."""

import json
from collections.abc import Iterable
from itertools import pairwise

import numpy as np
import pytest

from weir_engine.errors import ConfigError
from weir_engine.sim.cost import CPU_2_CORES, Part
from weir_engine.sim.recorded import RecordedProfile
from weir_engine.sim.recorded_cost import RecordedCost
from weir_engine.sim.recording import RecordedStep, Recording

ENGINE = {
    "block_size_tokens": 32,
    "total_blocks": 750,
    "max_batched_tokens": 2048,
    "max_seqs": 64,
    "max_model_len_tokens": 4096,
}
HEADER = json.dumps({"engine": ENGINE})


def recorded_steps(rows: Iterable[str]) -> tuple[RecordedStep, ...]:
    return Recording.read([HEADER, *rows]).steps


def parts_of(rng: np.random.Generator) -> list[Part]:
    parts = [
        Part(tokens=1, computed_tokens=int(n)) for n in rng.integers(10, 1500, rng.integers(1, 12))
    ]
    if rng.random() < 0.6:
        parts.append(
            Part(tokens=int(rng.integers(2, 400)), computed_tokens=int(rng.integers(0, 900)))
        )
    return parts


def lines(count: int, seed: int) -> list[str]:
    rng = np.random.default_rng(seed)
    made = []
    for _ in range(count):
        parts = parts_of(rng)
        row = {
            "prefills": [[p.tokens, p.computed_tokens] for p in parts if p.tokens > 1],
            "decodes": [p.computed_tokens + 1 for p in parts if p.tokens == 1],
            "seconds": CPU_2_CORES.seconds(parts, rng),
        }
        made.append(json.dumps(row))
    return made


def test_steps_of_another_stretch_are_predicted() -> None:
    cost = RecordedCost.fit(recorded_steps(lines(600, seed=1)))
    assert cost.error(recorded_steps(lines(300, seed=2))) < 0.1


def test_drawn_steps_take_what_the_engine_takes_on_average_and_in_the_tail() -> None:
    cost = RecordedCost.fit(recorded_steps(lines(2000, seed=1)))
    rng = np.random.default_rng(5)
    parts = parts_of(rng)
    drawn = [cost.seconds(parts, rng) for _ in range(3000)]
    real = [CPU_2_CORES.seconds(parts, rng) for _ in range(3000)]
    assert np.mean(drawn) == pytest.approx(np.mean(real), rel=0.08)
    assert np.percentile(drawn, 99) == pytest.approx(np.percentile(real, 99), rel=0.3)


def test_its_parts_add_up_as_the_simulator_asks() -> None:
    cost = RecordedCost.fit(recorded_steps(lines(600, seed=1)))
    assert cost.work_s(()) == 0.0
    more = [Part(tokens=1, computed_tokens=500)] * 4
    assert 0 < cost.work_s(more[:1]) < cost.work_s(more)
    prefill = Part(tokens=300, computed_tokens=0)
    assert cost.work_s([*more, prefill]) > cost.work_s(more)
    assert cost.empty_step_s > 0


def test_each_size_of_step_has_its_own_noise() -> None:
    """Short steps that spread by a third, long ones by 2%."""
    rng = np.random.default_rng(7)
    rows = []
    for number in range(1000):
        tokens, spread = ((400, 0.02), (20, 0.3))[number % 2]
        seconds = (0.01 + 1e-4 * tokens) * (1 + spread * rng.uniform(-1, 1))
        rows.append({"prefills": [[tokens, 0]], "decodes": [], "seconds": seconds})
    cost = RecordedCost.fit(recorded_steps(map(json.dumps, rows)))
    drawn = {
        tokens: [cost.seconds([Part(tokens=tokens, computed_tokens=0)], rng) for _ in range(500)]
        for tokens in (20, 400, 4000)
    }
    wide, narrow, beyond = (np.std(d) / np.mean(d) for d in drawn.values())
    assert wide > 0.1
    assert narrow < 0.03
    assert beyond < 0.03


def test_a_slower_machine_takes_as_much_longer_for_every_step() -> None:
    steps = recorded_steps(lines(400, seed=1))
    cost = RecordedCost.fit(steps)
    assert cost.slowness(steps) == pytest.approx(1.0, abs=0.02)
    assert cost.slower(2.0).slowness(steps) == pytest.approx(cost.slowness(steps) / 2)
    parts = [Part(tokens=30, computed_tokens=0), Part(tokens=1, computed_tokens=500)]
    once, twice = (
        made.seconds(parts, np.random.default_rng(3)) for made in (cost, cost.slower(2.0))
    )
    assert twice == pytest.approx(2 * once)


def test_a_prefix_that_several_read_costs_less_than_as_many_contexts_of_their_own() -> None:
    rng = np.random.default_rng(8)
    rows = []
    for _ in range(300):
        count, context = int(rng.integers(1, 40)), int(rng.integers(100, 2000))
        distinct = int(count * context * rng.uniform(1 / count, 1))
        seconds = 0.004 + 2e-7 * count * context + 7e-7 * distinct
        rows.append(
            {
                "prefills": [],
                "decodes": [context + 1] * count,
                "distinct_tokens": distinct,
                "seconds": seconds * rng.uniform(0.98, 1.02),
            }
        )
    cost = RecordedCost.fit(recorded_steps(map(json.dumps, rows)))
    parts = [Part(tokens=1, computed_tokens=1000)] * 20
    assert cost.step_s(parts, 1000) == pytest.approx(0.0087, rel=0.03)
    assert cost.step_s(parts, 20000) == pytest.approx(0.022, rel=0.03)
    assert cost.work_s(parts) == pytest.approx(cost.step_s(parts, 20000) - cost.empty_step_s)


def test_a_step_right_after_a_prefill_takes_longer() -> None:
    """2 ms more after a prefill; none where the engine was idle in between."""
    rng = np.random.default_rng(10)
    rows: list[dict[str, object]] = []
    before = False
    for _ in range(600):
        prefill, idle = bool(rng.random() < 0.3), bool(rng.random() < 0.2)
        contexts = [int(n) for n in rng.integers(50, 1500, rng.integers(1, 8))]
        tokens = int(rng.integers(50, 300)) if prefill else 0
        seconds = 0.005 + 1.5e-4 * tokens + 3e-4 * len(contexts) + 2e-7 * sum(contexts)
        rows.append(
            {
                "prefills": [[tokens, 0]] if prefill else [],
                "decodes": contexts,
                "pause_s": None if idle else 0.001,
                "seconds": (seconds + 0.002 * (before and not idle)) * rng.uniform(0.98, 1.02),
            }
        )
        before = prefill
    steps = recorded_steps(map(json.dumps, rows))
    cost = RecordedCost.fit(steps)
    assert cost.error(steps) < 0.015
    decode, prompt = [Part(tokens=1, computed_tokens=500)], [Part(tokens=200, computed_tokens=0)]
    more_s = cost.step_s(decode, 500, after_prefill=True) - cost.step_s(decode, 500)
    assert more_s == pytest.approx(0.002, rel=0.05)
    means = []
    for parts in (decode, prompt):
        run, after = cost.in_order(np.random.default_rng(1)), []
        for _ in range(300):
            run.timed(parts, 0)
            after.append(run.timed(decode, 500)[0])
        means.append(np.mean(after))
    assert means[1] - means[0] == pytest.approx(0.002, rel=0.1)


def test_a_run_has_its_slow_steps_in_rows_as_they_were_recorded() -> None:
    """One stretch of 50 slow steps in 500; drawn one by one they would lie apart."""
    rng = np.random.default_rng(9)
    rows = []
    for number in range(500):
        tokens = int(rng.integers(150, 250))
        slow = 1.5 if 300 <= number < 350 else 1.0
        seconds = (0.004 + 2e-4 * tokens) * slow * rng.uniform(0.99, 1.01)
        rows.append({"prefills": [[tokens, 0]], "decodes": [], "seconds": seconds})
    cost = RecordedCost.fit(recorded_steps(map(json.dumps, rows)))
    parts = [Part(tokens=200, computed_tokens=0)]
    for seed in range(3):
        run = cost.in_order(np.random.default_rng(seed))
        times = [run.timed(parts, 0)[0] > 0.052 for _ in range(500)]
        changes = sum(here != after for here, after in pairwise([*times, times[0]]))
        assert sum(times) == pytest.approx(50, abs=12)
        assert changes <= 20


def test_a_saved_cost_is_equal() -> None:
    cost = RecordedCost.fit(recorded_steps(lines(100, seed=1)))
    assert RecordedCost.of(json.loads(json.dumps(cost.plain()))) == cost


def test_steps_without_work_or_time_are_left_out() -> None:
    rows = [
        '{"prefills": [], "decodes": [], "seconds": 0.1}',
        '{"prefills": [[5, 0]], "decodes": [], "seconds": 0}',
        '{"prefills": [[5, 0]], "decodes": [7], "seconds": 0.2}',
    ]
    step = RecordedStep(prefills=((5, 0),), decodes=(7,), seconds=0.2, distinct_tokens=6)
    assert recorded_steps(rows) == (step,)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ('{"prefills": [[1]], "decodes": [], "seconds": 1}', "row 2: prefills"),
        ('{"prefills": [], "decodes": ["x"], "seconds": 1}', "row 2: decodes"),
        ('{"prefills": [], "decodes": [3], "seconds": 1, "pause_s": -1}', "row 2: pause_s is -1"),
        (
            '{"prefills": [], "decodes": [3], "seconds": 1, "distinct_tokens": -1}',
            "row 2: distinct",
        ),
        ('{"engine": {}}', "row 2: engine: give whole numbers for block_size_tokens"),
        (HEADER.replace("750", "751"), "another engine's steps"),
        ('{"prefills": [], "decodes": [3]}', "row 2: seconds is None"),
    ],
)
def test_a_bad_row_is_named(row: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        recorded_steps([row])


def test_too_few_steps_are_refused() -> None:
    with pytest.raises(ConfigError, match="record 30 or more"):
        RecordedCost.fit(recorded_steps(lines(5, seed=1)))


def test_a_recording_without_the_engines_shape_is_refused() -> None:
    with pytest.raises(ConfigError, match="no row has the engine's shape"):
        Recording.read(lines(5, seed=1))


def test_a_profile_has_the_engines_shape_and_the_pauses_of_a_busy_engine() -> None:
    rows = [json.loads(line) for line in lines(90, seed=1)]
    for number, row in enumerate(rows):
        requests = len(row["prefills"]) + len(row["decodes"])
        row["pause_s"] = None if number % 3 == 0 else 0.001 + 2e-5 * requests
    again = [HEADER, *map(json.dumps, rows[:40]), HEADER, *map(json.dumps, rows[40:])]
    profile = RecordedProfile.fit(Recording.read(again))
    assert profile.pause_s == pytest.approx(0.001, rel=1e-3)
    assert profile.pause_request_s == pytest.approx(2e-5, rel=1e-3)
    assert profile.shape.total_blocks == 750
    assert RecordedProfile.of(json.loads(json.dumps(profile.plain()))) == profile


def test_pauses_of_a_busy_engine_do_not_lengthen_a_lone_decodes_step() -> None:
    """Large steps with prompts have pauses that no line through them and the small ones meets."""
    lone = {"prefills": [], "decodes": [500], "seconds": 0.005, "pause_s": 0.0005}
    large = {"prefills": [[100, 0]], "decodes": [900] * 40, "seconds": 0.09, "pause_s": 0.0021}
    larger = {"prefills": [[100, 0]], "decodes": [900] * 55, "seconds": 0.11, "pause_s": 0.0023}
    rows = [HEADER, *map(json.dumps, [lone] * 5 + [large] * 60 + [larger] * 40)]
    profile = RecordedProfile.fit(Recording.read(rows))
    assert profile.pause_s + profile.pause_request_s == pytest.approx(0.0005, rel=0.1)
    assert profile.pause_s + 41 * profile.pause_request_s == pytest.approx(0.0021, rel=0.4)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("format", "weir-recorded-profile-3", "format is not weir-recorded-profile-4"),
        ("pause_s", None, "pause_s is None"),
        ("pause_request_s", -1, "pause_request_s is -1"),
        ("ranks", [0.5, 1.5], "ranks must be 0 to 1"),
        ("engine", {"max_seqs": 1}, "recorded profile: engine: give whole numbers"),
    ],
)
def test_a_broken_profile_is_refused(field: str, value: object, message: str) -> None:
    plain = RecordedProfile.fit(Recording.read([HEADER, *lines(40, seed=1)])).plain()
    with pytest.raises(ConfigError, match=message):
        RecordedProfile.of({**plain, field: value})


def test_a_broken_file_is_refused() -> None:
    cost = RecordedCost.fit(recorded_steps(lines(100, seed=1)))
    with pytest.raises(ConfigError, match="coefficients must be"):
        RecordedCost.of({**cost.plain(), "coefficients": [1.0]})
    zeros = [0.0] * len(cost.coefficients)
    for value in (float("nan"), float("inf"), -1.0):
        with pytest.raises(
            ConfigError, match="coefficients must be 8 numbers or more, none below 0"
        ):
            RecordedCost.of({**cost.plain(), "coefficients": [value, *zeros[1:]]})
    with pytest.raises(ConfigError, match="coefficients are all 0"):
        RecordedCost.of({**cost.plain(), "coefficients": zeros})
    with pytest.raises(ConfigError, match="noise must be a list of sizes"):
        RecordedCost.of({"coefficients": cost.plain()["coefficients"]})
    with pytest.raises(ConfigError, match="ranks must be"):
        RecordedCost.of({**cost.plain(), "ranks": None})
    for size, message in (({"upto_s": 1.0, "ratios": [1.0]}, "ratios"), ({}, "upto_s")):
        with pytest.raises(ConfigError, match=f"{message} must be"):
            RecordedCost.of({**cost.plain(), "noise": [size]})
