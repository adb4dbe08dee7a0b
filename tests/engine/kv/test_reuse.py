"""Which free blocks online requests find again: against every wait kept, and on worked examples."""

import math
import random
from collections import OrderedDict
from collections.abc import Callable
from time import process_time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weir_engine.ids import BlockHash
from weir_engine.kv.reuse import OnlineReuse

TOTAL = 320


def conversation(number: int, blocks: int) -> list[BlockHash]:
    return [1000 * number + index for index in range(blocks)]


def turn(reuse: OnlineReuse, prompt: list[BlockHash], at_s: float) -> None:
    reuse.asked(prompt, at_s)
    reuse.left(reversed(prompt), at_s)


def rounds(reuse: OnlineReuse, conversations: int, *, times: int, from_s: float = 0.0) -> float:
    """Each conversation has a turn of ten blocks, one a second; when it ends."""
    at_s = from_s
    for _ in range(times):
        for number in range(conversations):
            turn(reuse, conversation(number, 10), at_s)
            at_s += 1.0
    return at_s


def test_nothing_is_kept_for_prompts_that_nobody_asks_for_again() -> None:
    reuse = OnlineReuse(TOTAL)
    for number in range(50):
        turn(reuse, conversation(number, 10), number)
    assert reuse.kept_blocks(50) == 0


def test_what_conversations_left_since_their_last_turns_is_kept() -> None:
    reuse = OnlineReuse(TOTAL)
    end_s = rounds(reuse, 12, times=4)
    assert reuse.kept_blocks(end_s - 1) == 120


def test_it_is_empty_after_a_quiet_hour_and_back_with_the_load() -> None:
    """What comes back within seconds is not waited for over night; how long is not forgotten."""
    reuse = OnlineReuse(TOTAL)
    end_s = rounds(reuse, 12, times=4)
    assert reuse.kept_blocks(end_s + 3600) == 0
    for number in range(3):
        turn(reuse, conversation(100 + number, 10), end_s + 3600 + number)
    assert reuse.kept_blocks(end_s + 3603) == 30


def test_a_shared_prefix_needs_little() -> None:
    reuse = OnlineReuse(TOTAL)
    shared = conversation(99, 10)
    for number in range(60):
        turn(reuse, [*shared, *conversation(number, 3)], number)
    assert 10 <= reuse.kept_blocks(60) <= 10 + 3 * 5


def test_a_hit_that_was_evicted_meanwhile_still_counts() -> None:
    """The batch may have evicted it: that a larger reserve would have kept it must be seen."""
    reuse = OnlineReuse(TOTAL)
    end_s = rounds(reuse, 23, times=3)  # nobody tells it what is still cached
    assert reuse.kept_blocks(end_s - 1) == 230


def test_waits_of_up_to_twice_those_seen_are_allowed_for() -> None:
    """Of the waits of conversations the longest come last: their histories are still there then."""
    reuse = OnlineReuse(TOTAL)
    turn(reuse, conversation(99, 10), 0)
    end_s = rounds(reuse, 12, times=2, from_s=1.0)  # each waited 12 seconds
    assert reuse.kept_blocks(end_s - 1) == 120 + 10
    assert reuse.kept_blocks(end_s + 3) == 120


def test_of_what_does_not_fit_most_is_kept_where_most_is_found_so() -> None:
    """Ten that come back at once, twenty that come back late: the cap finds nine tenths of it."""
    reuse = OnlineReuse(TOTAL)
    at_s = 0.0
    for late in [*range(20)] * 4:
        for _ in range(11):
            turn(reuse, conversation(100, 10), at_s)
        at_s += 1.0
        turn(reuse, conversation(late, 13), at_s)
        at_s += 1.0
    assert reuse.kept_blocks(at_s - 1) > 0.6 * TOTAL


def test_of_what_does_not_fit_only_the_newest_is_kept_where_little_is_found_so() -> None:
    """Conversations in turns that need all of the cache: three quarters of it find none of them."""
    reuse = OnlineReuse(TOTAL)
    end_s = rounds(reuse, 31, times=3)
    assert reuse.kept_blocks(end_s - 1) == 0.3 * TOTAL


def test_what_no_cache_of_this_size_holds_is_not_waited_for() -> None:
    reuse = OnlineReuse(TOTAL)
    end_s = rounds(reuse, 200, times=3)
    assert reuse.kept_blocks(end_s) == 0


def test_requests_that_run_are_held_and_no_part_of_it() -> None:
    reuse = OnlineReuse(TOTAL)
    early = conversation(1, 10)
    turn(reuse, early, 0)
    reuse.asked(early, 5)
    reuse.left(reversed(early), 5)
    for number in range(2, 12):
        reuse.asked(conversation(number, 20), 6)
    assert reuse.kept_blocks(6) == 10
    reuse.asked(early, 7)
    assert reuse.kept_blocks(7) == 0


def test_resuming_after_a_preemption_is_no_reuse() -> None:
    reuse = OnlineReuse(TOTAL)
    mine = conversation(1, 10)
    turn(reuse, mine, 0)
    reuse.asked(mine, 1, again=True)
    reuse.left(reversed(mine), 2)
    assert reuse.kept_blocks(2) == 0


def test_rare_late_hits_are_not_worth_the_cache() -> None:
    reuse = OnlineReuse(TOTAL)
    rare = conversation(999, 1)
    turn(reuse, rare, 0)
    for number in range(25):
        turn(reuse, conversation(number, 10), number)
    reuse.asked(rare, 30)
    assert reuse.kept_blocks(30) == 0


def test_it_follows_when_traffic_changes() -> None:
    reuse = OnlineReuse(TOTAL)
    end_s = rounds(reuse, 23, times=5)
    assert reuse.kept_blocks(end_s - 1) == 230
    end_s = rounds(reuse, 3, times=300, from_s=end_s)
    assert reuse.kept_blocks(end_s - 1) <= 40


def test_an_emptied_cache_has_nothing_to_find() -> None:
    reuse = OnlineReuse(TOTAL)
    end_s = rounds(reuse, 5, times=3)
    reuse.clear()
    assert reuse.kept_blocks(end_s) == 0


WAITS: dict[str, Callable[[random.Random], float]] = {
    "exponential": lambda source: source.expovariate(1 / 10),
    "log-normal": lambda source: source.lognormvariate(math.log(10), 1.0),
    "nearly equal": lambda source: source.uniform(18, 22),
    "tools and people": lambda source: 2.0 if source.random() < 0.7 else source.expovariate(1 / 60),
}


def turns_of_many(wait_s: Callable[[random.Random], float]) -> list[tuple[float, list[BlockHash]]]:
    """Conversations of eight growing turns, one a second in all: when, and the prompt's blocks."""
    source = random.Random(1)  # noqa: S311 - load, not secrets
    turns: list[tuple[float, list[BlockHash]]] = []
    started_s = -300.0
    for number in range(200):
        started_s += source.expovariate(1 / 8)
        at_s, blocks = started_s, 0
        for _ in range(8):
            blocks += source.randint(1, 7)
            turns.append((at_s, conversation(number, blocks)))
            at_s += wait_s(source)
    return sorted(turn for turn in turns if 0 <= turn[0] < 1000)


def found_by(
    turns: list[tuple[float, list[BlockHash]]], total: int, reuse: OnlineReuse | None
) -> int:
    """Blocks found after a minute with only what is worth keeping; None: with all that fits."""
    cached: OrderedDict[BlockHash, None] = OrderedDict()
    kept, told_s, found = total, 0.0, 0
    for at_s, prompt in turns:
        if reuse is not None and at_s >= told_s:
            kept, told_s = reuse.kept_blocks(at_s), at_s + 1.0
        while len(cached) > kept:
            cached.popitem(last=False)
        hit = next((i for i, block in enumerate(prompt) if block not in cached), len(prompt))
        found += hit if at_s > 60 else 0
        for block in reversed(prompt):
            cached[block] = None
            cached.move_to_end(block)
        if reuse is not None:
            turn(reuse, prompt, at_s)
    return found


@pytest.mark.parametrize("waits", WAITS)
def test_conversations_find_what_the_whole_cache_would_have_found(waits: str) -> None:
    """However their waits are distributed, where the cache holds them."""
    turns = turns_of_many(WAITS[waits])
    total = 800
    reuse = OnlineReuse(total)
    assert found_by(turns, total, reuse) >= 0.95 * found_by(turns, total, None)


@given(
    st.lists(
        st.tuples(st.integers(0, 19), st.integers(1, 14), st.floats(0, 100)),
        min_size=1,
        max_size=100,
    )
)
def test_it_holds_nearly_all_that_is_found_and_nothing_that_is_held(
    turns: list[tuple[int, int, float]],
) -> None:
    """At most 2.5% of what was found, or 1% of what was asked, waited longer than its window.

    What was left within two windows is held.
    """
    reuse = OnlineReuse(10_000)
    left_at: dict[BlockHash, float] = {}
    waits: list[float] = []
    at_s, asked = 0.0, 0
    for number, blocks, later_s in turns:
        at_s += later_s
        prompt = conversation(number, blocks)
        waits += [at_s - left_at.pop(block) for block in prompt if block in left_at]
        asked += len(prompt)
        reuse.asked(prompt, at_s)
        reuse.left(reversed(prompt), at_s)
        left_at.update(dict.fromkeys(prompt, at_s))
    kept = reuse.kept_blocks(at_s)
    waits.sort()
    lost = int(max(0.025 * len(waits), 0.01 * asked))
    if len(waits) <= lost:
        assert kept == 0
        return
    window_s = waits[len(waits) - lost - 1]
    # Times are told apart by the second.
    least = sum(at_s - at <= 2 * window_s - 4 for at in left_at.values())
    most = sum(at_s - at <= 2 * window_s + 4 for at in left_at.values())
    assert least <= kept <= most


def test_what_comes_back_after_an_hour_was_not_waited_for() -> None:
    reuse = OnlineReuse(TOTAL)
    turn(reuse, conversation(1, 10), 0.0)
    reuse.asked(conversation(1, 10), 4000.0)
    reuse.left(conversation(1, 10), 4000.0)
    assert reuse.kept_blocks(4001.0) == 0


def test_in_a_large_cache_a_request_leaves_as_fast_as_in_a_small_one() -> None:
    """The oldest blocks are forgotten without a look past all that were forgotten before."""

    def seconds(total: int) -> float:
        reuse = OnlineReuse(total)
        reuse.left(range(3 * total), 0.0)
        started_s = process_time()
        reuse.left(range(3 * total, 3 * total + 5_000), 0.0)
        return process_time() - started_s

    assert seconds(40_000) < 8 * seconds(400)
