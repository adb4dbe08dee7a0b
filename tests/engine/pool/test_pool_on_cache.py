"""What the order is for: prefix hits of a shuffled batch on a cache that holds few documents."""

import random

from tests.engine.pool.requests import make_request
from weir_engine.ids import RequestClass
from weir_engine.kv.manager import KvManager
from weir_engine.pool.offline_pool import OfflinePool
from weir_engine.pool.simple_orders import FcfsOrder
from weir_engine.request import Request
from weir_engine.sched.selection import OfflineOrder

_BLOCK = 16
_DOCUMENTS, _QUESTIONS, _DOCUMENT_BLOCKS = 12, 10, 8
_SLOTS = 4


def _batch() -> list[Request]:
    requests = []
    for document in range(_DOCUMENTS):
        for question in range(_QUESTIONS):
            blocks = [f"d{document}.{at}" for at in range(_DOCUMENT_BLOCKS)]
            request = make_request(f"{document}-{question}", [*blocks, f"q{question}"])
            request.prompt_tokens = (_DOCUMENT_BLOCKS + 1) * _BLOCK + 1
            requests.append(request)
    random.Random(11).shuffle(requests)  # noqa: S311
    return requests


def _hit_share(order: OfflineOrder) -> float:
    """Share of prompt tokens found in a cache of three documents, with four slots and leaders."""
    kv = KvManager(total_blocks=3 * (_DOCUMENT_BLOCKS + 3), block_size_tokens=_BLOCK)
    for request in _batch():
        order.add(request)
        kv.expect(request)
    while len(order):
        step: list[Request] = []
        leading = set()
        for request in order.candidates(64, 0.0):
            if len(step) == _SLOTS:
                break
            hit = kv.hit(request)
            index = hit.tokens // _BLOCK
            missing = request.block_hashes[index:]
            if any(block_hash in leading for block_hash in missing):
                continue  # its leader computes that prefix in this very step
            tokens = request.known_tokens - hit.tokens
            if -(-tokens // _BLOCK) + hit.free_blocks > kv.free_blocks:
                break
            leading.update(missing)
            kv.allocate(request, new_tokens=tokens, hit=hit)
            order.taken(request.id)
            step.append(request)
        for request in step:
            request.computed_tokens = request.known_tokens
            kv.commit(request)
            kv.free(request.id)
        kv.check()
    counts = kv.hit_counts(RequestClass.OFFLINE)
    return counts.hit_tokens / counts.asked_tokens


def test_a_shuffled_batch_finds_nearly_all_it_could_share() -> None:
    """Source of the idea: HyGen §4.3; the workload is ours."""
    shareable = _DOCUMENT_BLOCKS * _BLOCK / ((_DOCUMENT_BLOCKS + 1) * _BLOCK + 1)
    ideal = shareable * (_QUESTIONS - 1) / _QUESTIONS
    assert _hit_share(OfflinePool()) >= 0.97 * ideal
    assert _hit_share(FcfsOrder()) <= 0.6 * ideal


def test_freshness_costs_some_sharing_and_not_all() -> None:
    rng = random.Random(3)  # noqa: S311
    prefix = _hit_share(OfflinePool())
    mixed = _hit_share(OfflinePool(utility_ratio=0.8, rng=rng.random))
    assert _hit_share(OfflinePool(utility_ratio=0.0)) < mixed <= prefix
