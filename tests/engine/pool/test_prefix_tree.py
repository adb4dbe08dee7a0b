"""The prefix tree: order properties on random prompts, and small examples of our own."""

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tests.engine.pool.requests import make_request, names, shared_blocks
from weir_engine.errors import DuplicateRequestError, UnknownRequestError
from weir_engine.ids import RequestId
from weir_engine.pool.prefix_tree import PrefixTree
from weir_engine.request import Request

_PROMPTS = st.text(alphabet="ab", max_size=6)


class TreeMachine(RuleBasedStateMachine):
    """Requests come, run and go; the model is the list of those that wait."""

    def __init__(self) -> None:
        super().__init__()
        self.tree = PrefixTree()
        self.waiting: list[Request] = []
        self.taken: Request | None = None  # the head taken last, if it was the last to leave
        self.stayed: list[Request] = []  # what waited then
        self.made = 0

    @rule(prompt=_PROMPTS)
    def add(self, prompt: str) -> None:
        self.made += 1
        request = make_request(f"r{self.made}", prompt)
        self.tree.add(request)
        self.waiting.append(request)

    @precondition(lambda self: self.waiting)
    @rule()
    def take_head(self) -> None:
        (head,) = self.tree.head(1)
        if self.taken is not None and self.stayed:
            taken = self.taken
            best = max(shared_blocks(taken, request) for request in self.stayed)
            assert shared_blocks(taken, head) >= best, "the walk left a prefix before its end"
        self.tree.take(head.id)
        self.waiting.remove(head)
        self.taken = head
        self.stayed = list(self.waiting)

    @precondition(lambda self: self.waiting)
    @rule(data=st.data(), runs=st.booleans())
    def leave_from_anywhere(self, data: st.DataObject, runs: bool) -> None:
        request = data.draw(st.sampled_from(self.waiting))
        self.taken = None
        if runs:
            self.tree.take(request.id)
        else:
            self.tree.remove(request.id)
        self.waiting.remove(request)

    @invariant()
    def holds_what_waits_once(self) -> None:
        walked = list(self.tree)
        assert sorted(names(walked)) == sorted(names(self.waiting))
        assert len(self.tree) == len(walked)
        assert self.tree.head(3) == walked[:3]
        assert all(request.id in self.tree for request in self.waiting)

    @invariant()
    def what_shares_a_prefix_stands_together(self) -> None:
        walked = list(self.tree)
        for at, request in enumerate(walked):
            shared = [shared_blocks(request, other) for other in walked[at + 1 :]]
            assert shared == sorted(shared, reverse=True)

    @invariant()
    def stays_compressed(self) -> None:
        assert self.tree.nodes() <= max(0, 2 * len(self.waiting) - 1)


TestTreeMachine = TreeMachine.TestCase
TestTreeMachine.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)


@given(prompts=st.lists(_PROMPTS, min_size=1, max_size=20))
@settings(max_examples=100, deadline=None)
def test_the_walk_shares_as_much_as_any_order_can(prompts: list[str]) -> None:
    """Sum of blocks shared with the one before: sorting gives the most there is."""
    tree = PrefixTree()
    requests = [make_request(f"r{at}", prompt) for at, prompt in enumerate(prompts)]
    for request in requests:
        tree.add(request)
    in_tree = sum(shared_blocks(one, other) for one, other in pairwise(tree))
    by_text = sorted(requests, key=lambda request: prompts[int(request.id[1:])])
    assert in_tree == sum(shared_blocks(one, other) for one, other in pairwise(by_text))


def test_started_families_are_used_up_in_the_order_they_were_started() -> None:
    """Leaders of A and B run, the rest of A waited: A goes on before B, and both before C."""
    tree = PrefixTree()
    for name in ("c1", "c2", "a1", "a2", "a3", "b1", "b2"):
        tree.add(make_request(name, name))
    for leader in ("a1", "b1"):
        tree.take(RequestId(leader))
    tree.add(make_request("a4", "a4"))
    assert names(list(tree)) == ["a2", "a3", "a4", "b2", "c1", "c2"]


def test_cancelling_does_not_start_a_family() -> None:
    tree = PrefixTree()
    for name in ("a1", "a2", "b1", "b2"):
        tree.add(make_request(name, name))
    tree.remove(RequestId("b1"))
    assert names(list(tree)) == ["a1", "a2", "b2"]


def test_a_family_within_a_started_one_keeps_its_place_when_split() -> None:
    tree = PrefixTree()
    for name, prompt in (("m", "zz"), ("x", "abc1"), ("y", "abc2"), ("n", "abq")):
        tree.add(make_request(name, prompt))
    tree.take(RequestId("x"))
    tree.add(make_request("k", "abd"))
    tree.add(make_request("w", "abc3"))
    assert names(list(tree)) == ["y", "w", "n", "k", "m"]


def test_hash_lists_may_grow_while_a_request_runs() -> None:
    """The tree refers to hash lists of requests that left; their owners only append."""
    tree = PrefixTree()
    first, second = make_request("a", "xxa"), make_request("b", "xxb")
    tree.add(first)
    tree.add(second)
    tree.take(first.id)
    first.block_hashes.append(123)
    tree.add(make_request("c", "xxc"))
    tree.add(make_request("d", "y"))
    assert names(list(tree)) == ["b", "c", "d"]


def test_ids_are_checked() -> None:
    tree = PrefixTree()
    tree.add(make_request("a", "x"))
    with pytest.raises(DuplicateRequestError, match="request a is in the prefix tree already"):
        tree.add(make_request("a", "y"))
    with pytest.raises(UnknownRequestError, match="request b is not in the prefix tree"):
        tree.remove(RequestId("b"))
    with pytest.raises(UnknownRequestError, match="request b is not in the prefix tree"):
        tree.take(RequestId("b"))
