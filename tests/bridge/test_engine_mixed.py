"""Random mixed workloads on a real vLLM: plan equal to act, sums that add up, threshold, cache."""

from __future__ import annotations

import random
from collections.abc import Mapping

import pytest

from tests.bridge.engine_host import SPLIT, Ask, EngineHost, numbers, text

pytestmark = [pytest.mark.vllm, pytest.mark.filterwarnings("ignore")]

BLOCKS = 61


def some_ask(rng: random.Random, number: int, documents: list[tuple[int, ...]]) -> Ask:
    offline = rng.random() < 0.6
    prompt = text(rng, rng.randrange(1, 200))
    if rng.random() < 0.7:
        document = rng.choice(documents)
        prompt = document[: rng.randrange(1, len(document) + 1)] + prompt
    return Ask(
        id=f"{'off' if offline else 'on'}{number}",
        prompt=prompt,
        output=rng.randrange(1, 24),
        offline=offline,
    )


def check_sums(host: EngineHost) -> None:
    """Invariants 1 and 2, against vLLM's own block tables."""
    manager = host.scheduler.kv_cache_manager.coordinator.single_type_managers[0]
    tables = {name: blocks for name, blocks in manager.req_to_blocks.items() if blocks}
    host.driver.ledger.audit(tables)
    is_online = host.driver.intake.is_online
    used: dict[int, set[bool]] = {}
    for name, blocks in tables.items():
        for block in blocks:
            used.setdefault(block.block_id, set()).add(is_online(name))
    kv = host.driver.kv
    assert len(used) + kv.free_blocks == kv.total_blocks
    adopted = host.driver.ledger.table.adopted
    assert all(adopted(block) for block, classes in used.items() if True in classes)
    assert kv.offline_only_blocks == sum(not adopted(block) for block in used)


@pytest.mark.parametrize(("seed", "profile"), [(0, None), (1, None), (2, SPLIT), (3, SPLIT)])
def test_vllm_does_exactly_what_is_planned(
    host: EngineHost, seed: int, profile: Mapping[str, object] | None
) -> None:
    """Strict mode raises on any divergence; arrivals, aborts and policies come at random."""
    rng = numbers(seed)
    documents = [text(rng, 400) for _ in range(3)]
    policy = {"offline_kv_blocks": 40, "offline_seq_slots": 8}
    host.use_weir({"policy": policy, "profile": profile}, blocks=BLOCKS)
    asked: list[str] = []
    for _ in range(250):
        if len(asked) < 60 and rng.random() < 0.3:
            for _ in range(rng.randrange(1, 4)):
                ask = some_ask(rng, len(asked), documents)
                host.add(ask)
                asked.append(ask.id)
        if rng.random() < 0.03 and asked:
            host.engine.abort_request([rng.choice(asked)])
        if rng.random() < 0.05:
            message = {
                "offline_kv_blocks": rng.randrange(0, BLOCKS),
                "offline_seq_slots": rng.randrange(0, 12),
            }
            assert host.core.weir_set_policy(message) == {"accepted": True}
        host.step()
        check_sums(host)
    host.core.weir_set_policy({"offline_kv_blocks": BLOCKS, "offline_seq_slots": 12})
    for _ in host.steps():
        check_sums(host)
    telemetry = host.driver.telemetry()
    assert telemetry["divergences"] == 0
    assert telemetry["free_kv_blocks"] == telemetry["total_blocks"] == BLOCKS - 1
    assert telemetry["requests"] == 0


def test_offline_work_stays_within_its_threshold(host: EngineHost) -> None:
    rng = numbers(11)
    document = text(rng, 200)
    driver = host.use_weir({"policy": {"offline_kv_blocks": 20, "offline_seq_slots": 8}}, blocks=80)
    for number in range(12):
        prompt = (document if number % 2 else ()) + text(rng, 90)
        host.add(Ask(id=f"off{number}", prompt=prompt, output=20, offline=True))
    most = 0
    for _ in host.steps():
        most = max(most, driver.kv.offline_only_blocks)
    assert 10 < most <= 20


def test_online_takes_blocks_back_from_offline(host: EngineHost) -> None:
    """A full cache of offline work does not keep an online request waiting."""
    rng = numbers(12)
    driver = host.use_weir({"policy": {"offline_kv_blocks": 40, "offline_seq_slots": 8}}, blocks=41)
    for number in range(8):
        host.add(Ask(id=f"off{number}", prompt=text(rng, 150), output=100, offline=True))
    for _ in range(30):
        host.step()
    assert driver.kv.free_blocks < 600 // 32
    host.add(Ask(id="on", prompt=text(rng, 600), output=2))
    finished: list[str] = []
    for _ in range(12):
        finished += host.step()
    assert finished == ["on"]
    assert driver.telemetry()["preemptions"] > 0


def test_a_request_that_reads_no_cache_is_planned_so_whenever_it_comes_back(
    host: EngineHost,
) -> None:
    """Preempted, it finds its own blocks in the cache, and does not read them."""
    rng = numbers(15)
    driver = host.use_weir({"policy": {"offline_kv_blocks": 40, "offline_seq_slots": 8}}, blocks=41)
    scores = {"prompt_logprobs": 1}
    for number in range(8):
        prompt = text(rng, 150)
        host.add(Ask(id=f"off{number}", prompt=prompt, output=100, offline=True, params=scores))
    for number in range(4):
        for _ in range(25):
            host.step()
        host.add(Ask(id=f"on{number}", prompt=text(rng, 600), output=2))
    for _ in host.steps():
        pass
    telemetry = driver.telemetry()
    assert telemetry["preemptions"] > 0
    assert telemetry["divergences"] == 0
    assert telemetry["offline_hit_tokens"] == 0


def online_hits(host: EngineHost, *, classed: bool) -> int:
    """Cached tokens that a returning conversation finds after a flood of batch prompts."""
    rng = numbers(13)
    driver = host.use_weir(
        {
            "policy": {"offline_kv_blocks": 60, "offline_seq_slots": 4},
            "classed_eviction": classed,
        },
        blocks=81,
    )
    conversation = text(rng, 320)
    host.run([Ask(id="first", prompt=conversation, output=2)])
    host.run([Ask(id=f"flood{n}", prompt=text(rng, 600), output=2, offline=True) for n in range(6)])
    before = driver.telemetry()["online_hit_tokens"]
    host.run([Ask(id="second", prompt=conversation + text(rng, 40), output=2)])
    return int(driver.telemetry()["online_hit_tokens"] - before)


def test_the_agent_is_told_what_conversations_find_again(host: EngineHost) -> None:
    """Three others between two turns: what they left may be found as well."""
    rng = numbers(14)
    driver = host.use_weir({"policy": {"offline_kv_blocks": 60, "offline_seq_slots": 4}}, blocks=81)
    conversation = text(rng, 320)
    for number, prompt in enumerate([conversation, *(text(rng, 160) for _ in range(3))]):
        host.run([Ask(id=f"first{number}", prompt=prompt, output=2)])
    assert driver.telemetry()["online_reuse_blocks"] == 0
    host.run([Ask(id="second", prompt=conversation + text(rng, 40), output=2)])
    assert 10 + 3 * 5 <= driver.telemetry()["online_reuse_blocks"] <= 11 + 3 * 5


def test_a_flood_of_batch_prompts_leaves_online_prefixes_cached(host: EngineHost) -> None:
    """Echo §4.2: eviction by class, then age. Plain LRU loses them."""
    assert online_hits(host, classed=True) == 320
    assert online_hits(host, classed=False) == 0


def test_a_prefix_that_waiting_requests_want_is_kept(host: EngineHost) -> None:
    rng = numbers(14)
    shared = text(rng, 320)
    driver = host.use_weir({"policy": {"offline_kv_blocks": 40, "offline_seq_slots": 1}}, blocks=41)
    host.run([Ask(id="leader", prompt=shared + text(rng, 10), output=2, offline=True)])
    for number in range(3):
        host.add(Ask(id=f"other{number}", prompt=text(rng, 600), output=2, offline=True))
    for number in range(2):
        host.add(Ask(id=f"same{number}", prompt=shared + text(rng, 10), output=2, offline=True))
    before = driver.telemetry()["offline_hit_tokens"]
    for _ in host.steps():
        pass
    assert driver.telemetry()["offline_hit_tokens"] - before >= 640
