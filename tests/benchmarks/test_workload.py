"""Every arm gets the same load: workloads are functions of their seed."""

from itertools import islice

import pytest

from benchmarks.colocation.setup import PRESSURE, TRACE, Workload
from weir_cli.loadlab.workload import (
    OfflineOrder,
    offline_pass,
    offline_supply,
    online_requests,
)


@pytest.mark.parametrize("workload", [TRACE, PRESSURE], ids=lambda workload: workload.name)
def test_the_same_seed_gives_the_same_requests(workload: Workload) -> None:
    first = online_requests(workload.online, seed=3, duration_s=60)
    assert first == online_requests(workload.online, seed=3, duration_s=60)
    assert first != online_requests(workload.online, seed=4, duration_s=60)


def test_a_longer_load_starts_with_the_shorter_one() -> None:
    short = online_requests(TRACE.online, seed=1, duration_s=20)
    long = online_requests(TRACE.online, seed=1, duration_s=90)
    assert long[: len(short)] == short


@pytest.mark.parametrize("workload", [TRACE, PRESSURE], ids=lambda workload: workload.name)
def test_arrivals_have_the_rate_that_was_asked_for(workload: Workload) -> None:
    requests = online_requests(workload.online, seed=1, duration_s=2_000)
    assert len(requests) / 2_000 == pytest.approx(workload.online.rate_per_s, rel=0.1)
    assert [request.at_s for request in requests] == sorted(request.at_s for request in requests)


def test_prompts_and_outputs_stay_within_their_bounds() -> None:
    shape = TRACE.online
    for request in online_requests(shape, seed=2, duration_s=300):
        assert shape.prompt.low <= len(request.prompt) <= shape.prompt.high
        assert shape.output.low <= request.max_tokens <= shape.output.high


def test_a_turn_begins_with_the_turn_before() -> None:
    turns = {
        request.name: request.prompt
        for request in online_requests(PRESSURE.online, seed=1, duration_s=120)
    }
    pairs = [
        (turns[f"{conversation}-{turn - 1}"], prompt)
        for name, prompt in turns.items()
        for conversation, _, number in [name.rpartition("-")]
        if (turn := int(number)) and f"{conversation}-{turn - 1}" in turns
    ]
    assert pairs
    assert all(later.startswith(earlier) and later != earlier for earlier, later in pairs)


def test_conversations_are_under_way_when_the_load_starts() -> None:
    turns = PRESSURE.online.turns
    first = online_requests(PRESSURE.online, seed=1, duration_s=30)
    seen = {int(request.name.rpartition("-")[2]) for request in first}
    assert seen == set(range(turns))
    assert min(request.at_s for request in first) >= 0


def test_orders_differ_in_order_only() -> None:
    prefix = offline_pass(TRACE.offline, seed=1, order=OfflineOrder.PREFIX)
    shuffled = offline_pass(TRACE.offline, seed=1, order=OfflineOrder.SHUFFLED)
    assert prefix != shuffled
    assert sorted(prefix, key=lambda line: line.custom_id) == sorted(
        shuffled, key=lambda line: line.custom_id
    )
    assert [line.document for line in prefix] == sorted(line.document for line in prefix)


def test_lines_of_a_document_share_its_text_and_nothing_more() -> None:
    lines = offline_pass(TRACE.offline, seed=1, order=OfflineOrder.PREFIX)
    heads = {line.document: line.prompt[:1500] for line in lines}
    assert len(set(heads.values())) == 40
    assert all(line.prompt.startswith(heads[line.document]) for line in lines)
    assert len({line.prompt for line in lines}) == 600


def test_the_supply_never_runs_dry_and_never_repeats_a_question() -> None:
    supply = offline_supply(TRACE.offline, seed=1, order=OfflineOrder.PREFIX)
    lines = list(islice(iter(supply, None), 1_500))
    assert len({line.prompt for line in lines}) == 1_500
    assert {line.document for line in lines[600:1_200]} == set(range(40))
