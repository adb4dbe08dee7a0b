"""Echo §4.1 and §4.2 on small examples. The paper shows its own in figures only: these are ours."""

import pytest

from tests.engine.sched.mini_engine import BLOCK, MiniEngine, exact_model, request
from weir_engine.config import EngineShape, Metric, Policy, Slo
from weir_engine.errors import ConfigError, DuplicateRequestError
from weir_engine.ids import BlockHash, RequestClass, RequestId
from weir_engine.kv.eviction import ClassedEviction, LruEviction
from weir_engine.kv.manager import KvManager
from weir_engine.presets import build_scheduler
from weir_engine.request import Request
from weir_engine.sched.account import OnlineLoad
from weir_engine.sched.benefit import BenefitSelection
from weir_engine.sched.cumulative_budget import CumulativeBudget

STEP_TOKENS = 64


def offline(name: str, prompt: int, family: str, shared: int) -> Request:
    return request(name, online=False, prompt=prompt, output=2, prefix=family, shared_blocks=shared)


def compute(kv: KvManager, done: Request, *, keep: bool = False) -> None:
    """Run a prompt to its end, so that its blocks are cached."""
    kv.allocate(done, new_tokens=done.prompt_tokens)
    done.computed_tokens = done.prompt_tokens
    kv.commit(done)
    if not keep:
        kv.free(done.id)


def selection(kv: KvManager) -> BenefitSelection:
    return BenefitSelection(
        kv=kv, model=exact_model(), block_size_tokens=BLOCK, step_tokens=STEP_TOKENS
    )


def names(found: BenefitSelection) -> list[str]:
    return [request.id for request in found.candidates(64, 0.0)]


class TestTwoFamiliesOneSlot:
    """Our example for eq. 4: family a is cached, family b is not; the choice is by the formula."""

    def build(self, blocks: int = 16) -> tuple[KvManager, BenefitSelection, Request, Request]:
        kv = KvManager(total_blocks=blocks, block_size_tokens=BLOCK)
        compute(kv, offline("a-first", 22, "a", 5))
        pool = selection(kv)
        cached, fresh = offline("a-next", 22, "a", 5), offline("b-first", 22, "b", 5)
        pool.add(fresh)
        pool.add(cached)
        return kv, pool, cached, fresh

    def test_the_cached_family_wins_although_it_came_second(self) -> None:
        """Both serve 22 tokens; a computes 2 of them in 12 ms, b all 22 in 32 ms."""
        _, pool, cached, fresh = self.build()
        assert pool.score(cached) == pytest.approx(22 / 0.012)
        assert pool.score(fresh) == pytest.approx(22 / 0.032)
        assert names(pool) == ["a-next", "b-first"]

    def test_evicting_what_others_want_is_punished(self) -> None:
        """b needs 6 blocks, rounded up to 8; 7 of 12 are empty, so one of a's, which a-next wants.

        Its 4 tokens would be computed again: (22 - 4) / 32 ms.
        """
        _, pool, _, fresh = self.build(blocks=12)
        assert pool.score(fresh) == pytest.approx((22 - BLOCK) / 0.032)

    def test_the_scheduler_takes_the_choice_when_one_slot_is_free(self) -> None:
        engine = MiniEngine(
            preset="echo",
            slos=(
                Slo(metric=Metric.TTFT, statistic="p90", threshold_s=1.0),
                Slo(metric=Metric.TPOT, statistic="p90", threshold_s=0.05),
            ),
            policy=Policy(offline_kv_blocks=100, offline_seq_slots=1),
        )
        engine.add(offline("a-first", 22, "a", 5))
        engine.run()
        engine.add(offline("b-first", 22, "b", 5))
        engine.add(offline("a-next", 22, "a", 5))
        plan = engine.step()
        assert [work.request_id for work in plan.work] == ["a-next"]
        engine.run()
        assert engine.ended.keys() == {"a-first", "a-next", "b-first"}


class TestRanking:
    def test_it_stands_until_something_changed_and_follows_the_batch(self) -> None:
        kv = KvManager(total_blocks=64, block_size_tokens=BLOCK)
        pool = selection(kv)
        for name in ("x", "y"):
            pool.add(offline(name, 12, name, 0))
        assert names(pool) == names(pool) == ["x", "y"]
        assert len(pool.candidates(1, 0.0)) == 1
        pool.remove(RequestId("x"))
        assert names(pool) == ["y"]
        assert RequestId("y") in pool
        pool.taken(RequestId("y"))
        assert (names(pool), len(pool)) == ([], 0)

    def test_a_decode_batch_counts_for_every_choice_alike(self) -> None:
        """Eq. 4 is of the whole batch: its decodes are in benefit and in time."""
        engine = MiniEngine(preset="echo", slos=CUMULATIVE)
        for i in range(3):
            engine.add(offline(f"r{i}", 12, f"f{i}", 0))
        for _ in range(20):
            engine.step()
        assert not engine.live

    def test_bad_settings_and_doubles_are_refused(self) -> None:
        kv = KvManager(total_blocks=4, block_size_tokens=BLOCK)
        with pytest.raises(ConfigError, match="step_tokens"):
            BenefitSelection(kv=kv, model=exact_model(), block_size_tokens=BLOCK, step_tokens=0)
        pool = selection(kv)
        pool.add(offline("x", 12, "x", 0))
        with pytest.raises(DuplicateRequestError):
            pool.add(offline("x", 12, "x", 0))


CUMULATIVE = (
    Slo(metric=Metric.TTFT, statistic="p90", threshold_s=1.0),
    Slo(metric=Metric.TPOT, statistic="p90", threshold_s=0.05),
)


class TestSixBlocks:
    """Our example for the eviction order, a table of six blocks, one a request."""

    def table(self, kv: KvManager) -> dict[str, BlockHash]:
        """A running online block, a wanted one, a finished online one, a finished offline one."""
        made: dict[str, BlockHash] = {}
        for name, online in (("spent", False), ("wanted", False), ("done", True), ("runs", True)):
            one = request(name, online=online, prompt=BLOCK, output=1)
            made[name] = one.block_hashes[0]
            compute(kv, one, keep=name == "runs")
        kv.expect(request("again", online=False, prompt=2 * BLOCK, prefix="wanted-family"))
        follower = Request(
            id=RequestId("follower"),
            klass=RequestClass.OFFLINE,
            arrival_s=0.0,
            prompt_tokens=2 * BLOCK,
            max_output_tokens=1,
            block_hashes=[made["wanted"], -1],
        )
        kv.expect(follower)
        return made

    def order(self, kv: KvManager, made: dict[str, BlockHash]) -> list[str]:
        names_of = {block_hash: name for name, block_hash in made.items()}
        gone: list[str] = []
        for blocks in range(1, kv.free_blocks + 1):
            evicted = kv.next_evicted(blocks)
            gone += [n for h, n in names_of.items() if h in evicted and n not in gone]
        return gone

    def test_without_a_running_owner_the_least_useful_goes_first(self) -> None:
        """Finished offline without references (0), finished online (0.5), wanted (count)."""
        kv = KvManager(total_blocks=6, block_size_tokens=BLOCK, eviction=ClassedEviction())
        made = self.table(kv)
        assert self.order(kv, made) == ["spent", "done", "wanted"]  # running: never

    def test_lru_goes_by_age_alone(self) -> None:
        kv = KvManager(total_blocks=6, block_size_tokens=BLOCK, eviction=LruEviction())
        made = self.table(kv)
        assert self.order(kv, made) == ["spent", "wanted", "done"]

    @pytest.mark.parametrize(("threshold", "running", "kept"), [(6, 3, 0), (4, 2, 1)])
    def test_the_threshold_leaves_room_so_that_a_burst_preempts_nobody(
        self, threshold: int, running: int, kept: int
    ) -> None:
        """Six blocks, three offline requests of two each, then an online one of two.

        Without a threshold all three run and the burst preempts one, whose blocks are lost; with
        four blocks two run and the burst finds two free.
        """
        kv = KvManager(total_blocks=6, block_size_tokens=BLOCK)
        engine = MiniEngine(
            blocks=6,
            preset="echo",
            slos=CUMULATIVE,
            policy=Policy(offline_kv_blocks=threshold, offline_seq_slots=6),
        )
        for i in range(3):
            engine.add(offline(f"r{i}", 5, f"f{i}", 0))
        engine.step()
        assert len(engine.scheduler.state.running_offline) == running
        engine.add(request("burst", online=True, prompt=5, output=2, at=engine.now_s))
        plan = engine.step()
        assert (len(plan.preempt) == 0) == bool(kept)
        assert "burst" in {work.request_id for work in plan.work}
        assert kv.total_blocks == engine.kv.total_blocks


class TestCumulativeBudget:
    def load(self, now_s: float, **given: float | None) -> OnlineLoad:
        return OnlineLoad(now_s=now_s, idle_step_s=0.01, **given)  # type: ignore[arg-type]

    def test_the_tightest_token_of_any_request_ends_the_step(self) -> None:
        """Echo §5.1: token i is due at arrival + TTFT + i * TPOT."""
        budget = CumulativeBudget(CUMULATIVE)
        decoding = self.load(10.2, earliest_cumulative_s=9.5)
        assert budget.step_limit(decoding).seconds == pytest.approx(0.3)
        both = self.load(10.2, earliest_cumulative_s=9.5, earliest_arrival_s=9.4)
        assert budget.step_limit(both).seconds == pytest.approx(0.2)

    def test_nobody_online_no_limit(self) -> None:
        budget = CumulativeBudget(CUMULATIVE)
        assert budget.step_limit(self.load(1.0)).seconds == float("inf")
        assert budget.prefill_limit(self.load(1.0)) == float("inf")
        assert list(budget.accounts) == []

    def test_prompts_go_on_however_late_a_decoder_is(self) -> None:
        budget = CumulativeBudget(CUMULATIVE)
        assert budget.prefill_limit(self.load(99.0, earliest_cumulative_s=1.0)) == 0.05

    def test_it_needs_both_objectives(self) -> None:
        with pytest.raises(ConfigError, match="tpot"):
            CumulativeBudget(CUMULATIVE[:1])

    def test_no_offline_token_is_planned_past_a_due_time(self) -> None:
        """Offline work waits while the slack of an online decoder is used up."""
        engine = MiniEngine(preset="echo", slos=CUMULATIVE, max_batched_tokens=1000, blocks=300)
        engine.add(request("on", online=True, prompt=8, output=30))
        engine.step()
        engine.add(offline("big", 900, "big", 0))
        while "on" in engine.live:
            plan = engine.step()
            assert plan.limit_s is not None
            assert plan.predicted_s <= plan.limit_s + 1e-9
        assert engine.scheduler.counters.offline_served_tokens > 0


def test_presets_without_what_they_need_are_refused() -> None:
    kv = KvManager(total_blocks=4, block_size_tokens=BLOCK)
    shape = EngineShape(
        block_size_tokens=BLOCK,
        total_blocks=4,
        max_batched_tokens=8,
        max_seqs=2,
        max_model_len_tokens=16,
    )
    with pytest.raises(ConfigError, match="static_budget_s"):
        build_scheduler("hygen", shape=shape, slos=(), kv=kv)
    with pytest.raises(ConfigError, match="preset"):
        build_scheduler("fastest", shape=shape, slos=(), kv=kv)


def test_a_ranking_is_kept_for_each_number_asked_for() -> None:
    """A plan asks twice where most are longer than the threshold: that ranks nothing anew."""
    kv = KvManager(total_blocks=64, block_size_tokens=BLOCK)
    pool = selection(kv)
    for i in range(80):
        pool.add(offline(f"r{i}", 22, f"family {i}", 5))
    first, more = pool.candidates(64, 0.0), pool.candidates(1024, 0.0)
    assert (len(first), len(more)) == (64, 80)
    assert pool.candidates(64, 0.0) is first
    assert pool.candidates(1024, 0.0) is more
    pool.remove(RequestId("r0"))
    assert len(pool.candidates(1024, 0.0)) == 79
