"""How steps are sized on an engine whose steps of up to 64 tokens are CUDA graphs."""

import pytest

from tests.engine.latency.test_graphed import COSTS, model, prompts
from tests.engine.sched.mini_engine import MiniEngine, request
from weir_engine.config import Metric, Policy, Slo
from weir_engine.latency.features import EMPTY_SHAPE, StepShape
from weir_engine.latency.models import GraphedModel
from weir_engine.sched.graph_sizing import beyond_is_dear, serves_more_within

MEAN = Slo(metric=Metric.TTFT, statistic="mean", threshold_s=10.0, reference_s=5.0)
TAIL = Slo(metric=Metric.TTFT, statistic="p99", threshold_s=10.0, reference_s=5.0)


def engine(
    beyond_s: float, *, slos: tuple[Slo, ...] = (MEAN, TAIL), decode_s: float = 0.001
) -> MiniEngine:
    """10 ms a step, 1 ms a token, and ``beyond_s`` for more than 64 of them."""
    costs = {"constant": 0.010, "prefill_tokens": 0.001, "decode_requests": decode_s}
    zeros = dict.fromkeys(GraphedModel.features_by_name, 0.0)
    return MiniEngine(
        slos=slos,
        blocks=1_000,
        max_batched_tokens=512,
        decode_s=decode_s,
        model=GraphedModel(zeros | costs | {"beyond_graphs": beyond_s}, graph_tokens=64),
    )


def chunks(made: MiniEngine, steps: int) -> list[dict[str, int]]:
    return [{work.request_id: work.tokens for work in made.step().work} for _ in range(steps)]


def test_an_online_prompt_takes_two_graphs_instead_of_one_launch() -> None:
    made = engine(0.05)
    made.add(request("a", online=True, prompt=100))
    assert chunks(made, 2) == [{"a": 64}, {"a": 36}]


def test_a_long_one_goes_beyond_at_once() -> None:
    made = engine(0.05)
    made.add(request("a", online=True, prompt=400))  # six more steps cost 60 ms, a launch 50
    assert chunks(made, 1) == [{"a": 400}]


def test_prompts_behind_the_first_do_not_make_it_wait() -> None:
    made = engine(0.05)
    made.add(request("a", online=True, prompt=100))
    made.add(request("b", online=True, prompt=400))
    first, second = chunks(made, 2)
    assert first == {"a": 64}
    assert second["a"] == 36


def test_it_is_so_where_only_a_tail_of_first_tokens_counts() -> None:
    made = engine(0.05, slos=(TAIL,))
    made.add(request("a", online=True, prompt=100))
    assert chunks(made, 2) == [{"a": 64}, {"a": 36}]


def test_a_prompt_is_not_overtaken_because_it_takes_several_steps() -> None:
    """It is late whatever is done, which would put it behind the other."""
    tail = Slo(metric=Metric.TTFT, statistic="p99", threshold_s=0.3, reference_s=0.1)
    made = engine(0.1, slos=(tail,))
    made.add(request("a", online=True, prompt=400))
    assert chunks(made, 1) == [{"a": 64}]
    made.add(request("b", online=True, prompt=60, at=made.now_s))
    assert chunks(made, 5) == [{"a": 64}] * 5
    assert chunks(made, 1) == [{"a": 16, "b": 48}]


def test_the_rest_of_a_prompt_that_fits_a_graph_stays_in_one() -> None:
    """Another prompt behind it would take the step beyond."""
    made = engine(0.05)
    made.add(request("a", online=True, prompt=20))
    made.add(request("b", online=True, prompt=400))
    assert sum(chunks(made, 1)[0].values()) <= 64


def test_offline_prompts_stay_within_graphs_where_that_serves_more() -> None:
    """64 tokens take 74 ms. A step of 200 ms has 140 beyond where a launch costs 50, or 189."""
    for beyond_s, expected in ((0.05, 64), (0.0005, 189)):
        made = engine(beyond_s)
        made.scheduler.set_policy(
            Policy(offline_kv_blocks=1_000, offline_seq_slots=8, step_budget_s=0.2)
        )
        made.add(request("batch", online=False, prompt=300))
        assert chunks(made, 1) == [{"batch": expected}]


@pytest.mark.parametrize(
    ("tokens", "budget_s", "most"), [(670, None, 63), (670, 0.15, 63), (900, None, 188)]
)
def test_where_a_mean_of_tbt_pays_offline_prompts_stay_within_graphs_until_it_has_saved_all(
    tokens: int, budget_s: float | None, most: int
) -> None:
    """A longer step serves more a second, but costs a decoder more than several short ones do."""
    mean = Slo(metric=Metric.TBT, statistic="mean", threshold_s=10.0, reference_s=5.0)
    made = engine(0.0005, slos=(mean,))
    made.scheduler.set_policy(
        Policy(offline_kv_blocks=1_000, offline_seq_slots=8, step_budget_s=budget_s)
    )
    made.add(request("chat", online=True, prompt=10, output=1_000))
    for _ in range(tokens):
        made.step()
    made.add(request("batch", online=False, prompt=300))
    assert chunks(made, 1) == [{"chat": 1, "batch": most}]


def test_decodes_are_not_put_off_for_the_few_tokens_of_a_graph() -> None:
    """A decode costs 20 tokens of a graph's prompt, and 7 of what a whole step's would."""
    mean = Slo(metric=Metric.TBT, statistic="mean", threshold_s=10.0, reference_s=5.0)
    made = engine(1.0, slos=(mean,), decode_s=0.02)
    made.scheduler.set_policy(Policy(offline_kv_blocks=1_000, offline_seq_slots=8))
    made.add(request("chat", online=True, prompt=10, output=1_000))
    for _ in range(670):
        made.step()
    made.add(request("line", online=False, prompt=8, output=50))
    chunks(made, 2)
    made.scheduler.set_policy(
        Policy(offline_kv_blocks=1_000, offline_seq_slots=8, step_budget_s=0.1)
    )
    made.add(request("batch", online=False, prompt=300))
    (step,) = chunks(made, 1)
    assert step["line"] == 1
    assert step["batch"] > 20


@pytest.mark.parametrize(
    ("tokens", "dear"),
    [
        (400, True),  # it fits a graph: nothing is paid twice
        (600, True),  # 4 ms for a second step where 18 are saved
        (3_000, True),  # 20 ms for five more where 23 are
        (3_100, False),  # 24 ms for six more where 23 are
    ],
)
def test_a_prompt_stays_within_graphs_while_its_further_steps_cost_less_than_a_launch(
    tokens: int, dear: bool
) -> None:
    assert beyond_is_dear(model(), EMPTY_SHAPE, tokens) is dear


def test_nothing_keeps_prompts_within_graphs_where_larger_steps_cost_nothing_more() -> None:
    free = GraphedModel(COSTS | {"beyond_graphs": 0.0, "beyond_tokens": 0.0}, graph_tokens=512)
    assert not beyond_is_dear(free, EMPTY_SHAPE, 100)
    assert not beyond_is_dear(free, EMPTY_SHAPE, 600)


def test_decoders_make_further_steps_dearer_and_graphs_smaller() -> None:
    decodes = StepShape.of_decodes([2_000] * 40)  # 8.4 ms a step
    assert beyond_is_dear(model(), decodes, 472 * 3)
    assert not beyond_is_dear(model(), decodes, 472 * 3 + 1)
    assert not beyond_is_dear(model(), StepShape.of_decodes([10] * 512), 5)


def test_steps_go_beyond_where_that_serves_more_tokens_a_second() -> None:
    """512 tokens take 14 ms: 36 a ms. 1,319 take 50 ms: 26. 8,192 take 201 ms: 41."""
    assert serves_more_within(model(), EMPTY_SHAPE, 0.05, 8_192)
    assert not serves_more_within(model(), EMPTY_SHAPE, 1.0, 8_192)
    assert not serves_more_within(model(), EMPTY_SHAPE, 0.014, 8_192)  # it ends there anyway
    assert not serves_more_within(model(), prompts(600), 0.05, 8_192)  # it is beyond already
    assert not serves_more_within(model(0), EMPTY_SHAPE, 0.05, 8_192)
