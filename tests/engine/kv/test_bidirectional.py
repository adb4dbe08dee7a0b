"""Blocks filled from both ends: worked examples of ours (BROS shows them in figures only)."""

import pytest

from tests.engine.kv.requests import make_request
from weir_engine.errors import CapacityError, InvariantError
from weir_engine.kv.bidirectional import BidirectionalKvManager
from weir_engine.kv.layout import most_empty_first
from weir_engine.kv.manager import KvManager
from weir_engine.kv.view import BothEndsView, Missing
from weir_engine.request import Request

SIZE = 4


def manager(total: int = 4, **options: object) -> BidirectionalKvManager:
    return BidirectionalKvManager(
        total_blocks=total,
        block_size_tokens=SIZE,
        prefix_cache=False,
        **options,  # type: ignore[arg-type]
    )


def admitted(
    kv: KvManager, name: str, tokens: int, *, online: bool = False, at: float = 0.0
) -> Request:
    """A request whose whole prompt is computed."""
    request = make_request(name, range(tokens), block_size=SIZE, online=online)
    request.arrival_s = at
    kv.allocate(request, new_tokens=tokens)
    request.computed_tokens = tokens
    kv.commit(request)
    kv.settle()
    return request


def decode(kv: KvManager, request: Request) -> int:
    """One more token; answers with the slots that were copied out for it."""
    request.output_tokens += 1
    kv.allocate(request, new_tokens=1)
    request.computed_tokens += 1
    kv.commit(request)
    return kv.settle()


def whose(kv: BidirectionalKvManager, blocks: int) -> set[str] | None:
    """The requests whose fronts would be taken."""
    names = kv.claims(blocks)
    return None if names is None else {str(name) for name in names}


class TestOneBlock:
    """One block of four slots: the back has two tokens, the front grows by one a step."""

    def shared(self) -> tuple[BidirectionalKvManager, Request, Request]:
        kv = manager(total=1)
        back = admitted(kv, "back", 2)
        return kv, back, admitted(kv, "front", 1, online=True)

    def test_both_ends_are_used_without_a_copy_while_slots_are_empty(self) -> None:
        kv, back, front = self.shared()
        assert kv.blocks(back.id) == kv.blocks(front.id) == (0,)
        assert decode(kv, front) == 0
        assert kv.checkpointed_slots == 0
        kv.check()

    def test_the_overlap_is_checkpointed_slot_by_slot(self) -> None:
        kv, back, front = self.shared()
        assert [decode(kv, front) for _ in range(3)] == [0, 1, 1]
        assert kv.checkpointed_slots == 2
        assert kv.missing(back) == Missing(blocks=1, slots=2, fresh_blocks=1)
        kv.check()

    def test_the_back_runs_on_while_the_next_tokens_of_both_fit(self) -> None:
        kv, back, front = self.shared()
        back.output_tokens = 1  # it decodes: one more token to compute, as the front has
        assert kv.missing(back) == Missing()
        front.output_tokens += 1
        assert kv.missing(back) == Missing(blocks=1, slots=0, fresh_blocks=1)

    def test_slots_come_back_in_place_once_the_front_ended(self) -> None:
        kv, back, front = self.shared()
        for _ in range(3):
            decode(kv, front)
        assert kv.free(front.id) == 0
        assert kv.missing(back) == Missing(blocks=1, slots=2)
        assert kv.restore(back) == 2
        assert kv.blocks(back.id) == (0,)
        assert kv.missing(back) == Missing()
        assert (kv.copies.out_slots, kv.copies.in_slots) == (2, 2)
        kv.check()

    def test_a_front_that_ended_before_they_met_leaves_nothing_behind(self) -> None:
        kv, back, front = self.shared()
        kv.free(front.id)
        assert kv.shared_block(0) is None
        assert kv.missing(back) == Missing()

    def test_the_front_keeps_the_block_when_the_back_ends(self) -> None:
        kv, back, front = self.shared()
        assert kv.free(back.id) == 0
        assert kv.free_blocks == 0
        kv.check()
        assert kv.free(front.id) == 1

    def test_a_second_front_loses_no_more_than_the_first(self) -> None:
        kv, back, front = self.shared()
        for _ in range(3):
            decode(kv, front)
        kv.free(front.id)
        second = admitted(kv, "second", 3, online=True)
        assert kv.checkpointed_slots == 2
        kv.check()
        kv.preempt(back)
        assert kv.checkpointed_slots == 0
        assert kv.blocks(second.id) == (0,)
        kv.check()


class TestMoving:
    def test_without_a_free_block_it_cannot_and_nothing_changes(self) -> None:
        kv = manager(total=2)
        back = admitted(kv, "back", 2 * SIZE)
        admitted(kv, "front", SIZE, online=True)
        assert kv.missing(back) == Missing(blocks=1, slots=SIZE, fresh_blocks=1)
        with pytest.raises(CapacityError, match="must move 1 blocks"):
            kv.restore(back)
        assert kv.checkpointed_slots == SIZE
        kv.check()

    def test_it_keeps_its_place_in_the_table(self) -> None:
        kv = manager(total=4)
        back = admitted(kv, "back", 2 * SIZE)
        filler = admitted(kv, "filler", 2 * SIZE, online=True)
        front = admitted(kv, "front", SIZE, online=True)
        before = kv.blocks(back.id)
        assert kv.blocks(front.id) == before[1:]
        kv.free(filler.id)
        assert kv.restore(back) == SIZE
        after = kv.blocks(back.id)
        assert after[0] == before[0]
        assert after[1] != before[1]
        assert kv.blocks(front.id) == before[1:]
        kv.check()


class TestWhoseFront:
    def backs(self, kv: BidirectionalKvManager) -> tuple[Request, Request]:
        """Blocks 0 to 2: an early one of a full and a half block, a late one of a full block."""
        return admitted(kv, "early", SIZE + 2, at=1.0), admitted(kv, "late", SIZE, at=2.0)

    def test_the_paper_takes_the_most_empty_block(self) -> None:
        """BROS §5.2; on ties the latest arrival's."""
        kv = manager(total=3, order=most_empty_first)
        self.backs(kv)
        assert whose(kv, 1) == {"early"}
        assert whose(kv, 2) == {"early", "late"}
        assert whose(kv, 4) is None
        front = admitted(kv, "front", 1, online=True)
        assert kv.blocks(front.id) == (1,)
        second = admitted(kv, "second", 2 * SIZE, online=True)
        assert kv.blocks(second.id) == (2, 0)

    def test_ours_takes_all_of_one_request_before_the_next(self) -> None:
        kv = manager(total=3)
        self.backs(kv)
        assert whose(kv, 1) == {"late"}
        assert whose(kv, 2) == {"early", "late"}
        assert whose(kv, 4) is None
        front = admitted(kv, "front", 1, online=True)
        assert kv.blocks(front.id) == (2,)
        kv.free(front.id)

    def test_one_that_lost_slots_already_goes_first(self) -> None:
        kv = manager(total=5)
        early = admitted(kv, "early", 2 * SIZE, at=1.0)
        admitted(kv, "late", 2 * SIZE, at=2.0)
        latest = admitted(kv, "latest", SIZE, at=3.0)
        admitted(kv, "front", 2 * SIZE, online=True)  # all of the latest, then one of the late
        kv.free(latest.id)
        assert whose(kv, 1) == {"late"}
        assert whose(kv, 2) == {"late", str(early.id)}

    def test_a_prefix_in_the_cache_is_never_shared_from_both_ends(self) -> None:
        kv = BidirectionalKvManager(total_blocks=2, block_size_tokens=SIZE)
        admitted(kv, "offline", SIZE + 1)
        assert whose(kv, 1) == {"offline"}
        assert whose(kv, 2) is None
        with pytest.raises(CapacityError):
            admitted(kv, "online", 2 * SIZE, online=True)

    def test_what_is_written_into_a_shared_block_never_enters_the_cache(self) -> None:
        kv = BidirectionalKvManager(total_blocks=1, block_size_tokens=SIZE)
        back = admitted(kv, "back", 2)
        front = admitted(kv, "front", SIZE, online=True)
        assert not kv.is_cached(front.block_hashes[0])
        kv.check()
        kv.free(front.id)
        kv.restore(back)
        kv.check()

    def test_offline_takes_no_front(self) -> None:
        kv = manager(total=1)
        admitted(kv, "first", 1)
        with pytest.raises(CapacityError):
            admitted(kv, "second", 1)


class TestChecks:
    def test_a_broken_end_is_told_with_its_numbers(self) -> None:
        kv = manager(total=1)
        admitted(kv, "back", 2)
        front = admitted(kv, "front", 3, online=True)
        shared = kv.shared_block(0)
        assert shared is not None
        shared.lost_slots = 3
        with pytest.raises(InvariantError, match="3 checkpointed slots of 2 filled"):
            kv.check()
        shared.lost_slots, shared.front_at = 1, 5
        with pytest.raises(InvariantError, match=f"request {front.id} as its block 5"):
            kv.check()

    def test_paged_blocks_have_nothing_to_copy(self) -> None:
        paged = KvManager(total_blocks=1, block_size_tokens=SIZE)
        request = admitted(paged, "plain", 2)
        assert paged.settle() == paged.restore(request) == 0
        assert not isinstance(paged, BothEndsView)
        assert isinstance(manager(), BothEndsView)
