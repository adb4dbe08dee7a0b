"""Who leads a prefix: until its blocks are computed, whoever else computes them too."""

from dataclasses import replace

import pytest

from tests.engine.sched.mini_engine import BLOCK, request
from weir_engine.errors import InvariantError
from weir_engine.request import Request
from weir_engine.sched.inflight import InflightPrefixes


def running(name: str) -> Request:
    return request(name, online=False, prompt=2 * BLOCK, output=1, prefix="shared")


def test_a_prefix_stays_in_flight_until_the_last_that_computes_it_is_through() -> None:
    inflight = InflightPrefixes(BLOCK)
    first, second = running("first"), running("second")
    shared = first.block_hashes[0]
    inflight.start(first, 0)
    inflight.start(second, 0)
    first.computed_tokens = BLOCK
    inflight.advance(first)
    assert shared in inflight
    inflight.stop(second.id)
    assert shared not in inflight
    assert set(inflight.leading) == {"first"}


def test_a_request_without_full_blocks_leads_nothing() -> None:
    inflight = InflightPrefixes(BLOCK)
    short = replace(running("short"), block_hashes=[])
    inflight.start(short, 0)
    inflight.advance(short)
    inflight.stop(short.id)
    assert not inflight.leading


def test_a_block_that_leaves_twice_is_a_defect() -> None:
    inflight = InflightPrefixes(BLOCK)
    first = running("first")
    inflight.start(first, 0)
    inflight._counts.clear()
    with pytest.raises(InvariantError, match="left the in-flight set twice"):
        inflight.stop(first.id)
