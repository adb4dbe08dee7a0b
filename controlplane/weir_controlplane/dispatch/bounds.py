"""The numbers of dispatch, in one place."""

from __future__ import annotations

LEASE_S = 90.0  # §8.1
RENEW_AFTER_S = 30.0  # a third of it
GRACE_S = 30.0  # for the last partial commit after cancel, expiry or revocation
WATCH_EVERY_S = 5.0
AHEAD_S = 5.0  # a past time that is so far in the future is of a clock that was ahead
OUTAGE_AFTER_S = 20.0  # nobody watched the leases for so long: the database or all of us were away

MAX_HELD_CHUNKS = 1024  # in one sync
MAX_GIVEN_CHUNKS = 512  # an agent with so many gets no more: a sync must be able to name them
MAX_FETCH_LINES = 1000
MAX_FETCH_BYTES = 8 << 20
MAX_RESULT_LINE_BYTES = 16 << 20  # twice what any agent may be set to; a chunk: that a line
SLICE_CHUNKS = 4  # contiguous chunks handed out before the queue is looked at again

RESULT_BYTES_PER_LINE = 4096  # of an agent that does not say what it reserves
RESULT_BYTES_PER_TOKEN = 8

SOLO_DEATHS_TO_FAIL = 2  # §8.5
BATCH_DEATHS_TO_FAIL = 5
PAUSE_S = 60.0
MAX_PAUSE_S = 900.0

URGENT_S = 3600.0  # batches that expire sooner form the first deadline class
SOON_S = 6 * 3600.0
STARVED_S = 300.0  # a batch that got nothing for so long joins the first class
