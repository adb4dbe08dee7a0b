"""Which online prompts share a step."""

import pytest

from tests.engine.sched.mini_engine import MiniEngine, request
from tests.engine.sched.test_phases import tokens_of
from weir_engine.config import Metric, Slo


def test_with_an_objective_on_ttft_a_second_prompt_does_not_hold_up_the_first() -> None:
    engine = MiniEngine(
        max_batched_tokens=200,
        slos=(Slo(metric=Metric.TTFT, statistic="mean", threshold_s=1.0),),
    )
    engine.add(request("a", online=True, prompt=60))
    engine.add(request("b", online=True, prompt=60, at=0.001))
    assert tokens_of(engine.step()) == {"a": 60}
    assert tokens_of(engine.step()) == {"a": 1, "b": 60}


@pytest.mark.parametrize(("waiting", "joins"), [(4, False), (5, True)])
def test_where_many_wait_a_step_saved_is_worth_more_than_what_the_first_one_loses(
    waiting: int, joins: bool
) -> None:
    """A step saves 10 ms for each of them; a fifth of a full one is 42."""
    engine = MiniEngine(
        max_batched_tokens=200,
        blocks=1_000,
        slos=(Slo(metric=Metric.TTFT, statistic="mean", threshold_s=1.0),),
    )
    engine.add(request("a", online=True, prompt=60))
    for i in range(waiting):
        engine.add(request(f"b{i:02}", online=True, prompt=60, at=0.001 * (i + 1)))
    tokens = tokens_of(engine.step())
    assert tokens["a"] == 60
    assert ("b00" in tokens) is joins


@pytest.mark.parametrize(("waiting", "joins"), [(1, False), (2, True)])
def test_a_step_saved_is_one_of_its_decodes_too(waiting: int, joins: bool) -> None:
    """With twenty of them it is 30 ms; a fifth of a full step is 46."""
    engine = MiniEngine(
        max_batched_tokens=200,
        blocks=1_000,
        max_seqs=40,
        slos=(Slo(metric=Metric.TTFT, statistic="mean", threshold_s=1.0),),
    )
    for i in range(20):
        engine.add(request(f"on{i:02}", online=True, prompt=1, output=50, at=i / 1e6))
    engine.step()
    engine.add(request("a", online=True, prompt=80, at=engine.now_s))
    for i in range(waiting):
        engine.add(request(f"b{i}", online=True, prompt=60, at=engine.now_s + 1e-6))
    tokens = tokens_of(engine.step())
    assert tokens["a"] == 80
    assert ("b0" in tokens) is joins


def joined_beside_decodes(statistic: str) -> dict[str, int]:
    """What a step holds in which a prompt of 30 tokens could go beside one that ends."""
    slo = Slo(metric=Metric.TTFT, statistic=statistic, threshold_s=1.0)
    engine = MiniEngine(max_batched_tokens=200, blocks=300, max_seqs=40, slos=(slo,))
    for i in range(20):
        engine.add(request(f"on{i:02}", online=True, prompt=1, output=50, at=i / 1e6))
    engine.step()
    engine.add(request("a", online=True, prompt=30, at=engine.now_s))
    engine.add(request("b", online=True, prompt=30, at=engine.now_s + 1e-6))
    return tokens_of(engine.step())


def test_where_only_a_tail_of_ttft_counts_prompts_join_beside_many_decodes() -> None:
    """A step of 60 ms: six fixed costs, but two steps of the decodes alone."""
    assert joined_beside_decodes("p99")["b"] == 30
    assert "b" not in joined_beside_decodes("mean")


@pytest.mark.parametrize(
    ("tbt_s", "mean_s", "tail_s", "joins"),
    [
        pytest.param(0.001, 1.0, 1.0, True, id="tokens-are-late-and-prompts-have-time"),
        pytest.param(1.0, 1.0, 1.0, False, id="tokens-are-in-time"),
        pytest.param(0.001, 0.01, 1.0, False, id="first-tokens-have-saved-nothing"),
        pytest.param(0.001, 1.0, 0.1, False, id="together-they-would-be-late"),
    ],
)
def test_while_the_mean_of_tbt_is_missed_prompts_with_time_share_steps(
    tbt_s: float, mean_s: float, tail_s: float, joins: bool
) -> None:
    """Each step of prompts holds the decodes up; both prompts together take 130 ms."""
    engine = MiniEngine(
        max_batched_tokens=200,
        slos=(
            Slo(metric=Metric.TBT, statistic="mean", threshold_s=tbt_s),
            Slo(metric=Metric.TTFT, statistic="mean", threshold_s=mean_s),
            Slo(metric=Metric.TTFT, statistic="p99", threshold_s=tail_s),
        ),
    )
    for i in range(5):
        engine.add(request(f"before{i}", online=True, prompt=4, output=4, at=engine.now_s))
        engine.run(10)
    engine.add(request("a", online=True, prompt=60, at=engine.now_s))
    engine.add(request("b", online=True, prompt=60, at=engine.now_s))
    assert len(tokens_of(engine.step())) == 1 + joins


def test_without_one_prompts_share_a_step_as_in_the_stock_engine() -> None:
    engine = MiniEngine(max_batched_tokens=200)
    engine.add(request("a", online=True, prompt=60))
    engine.add(request("b", online=True, prompt=60, at=0.001))
    assert tokens_of(engine.step()) == {"a": 60, "b": 60}


def test_short_prompts_share_a_step() -> None:
    engine = MiniEngine()
    engine.add(request("a", online=True, prompt=4))
    engine.add(request("b", online=True, prompt=4))
    assert tokens_of(engine.step()) == {"a": 4, "b": 4}
