"""Trace rows become requests with their times, lengths and shared prefixes; bad rows are named.

Excerpts: Azure/AzurePublicDataset (CC BY 4.0), kvcache-ai/Mooncake (Apache-2.0),
flashserve/RAGPulse (MIT), alibaba/ServeGen (Apache-2.0), callanjfox/kv-cache-tester (Apache-2.0).
"""

import json

import pytest

from weir_engine.errors import ConfigError
from weir_engine.ids import BlockHash, RequestClass
from weir_engine.sim.hashes import BlockHasher
from weir_engine.sim.traces import (
    FORMATS,
    Cut,
    as_offline,
    coding_jsonl,
    peak_start_s,
)
from weir_engine.sim.workload import RequestSpec

PLAIN = ["arrival_s,input_tokens,output_tokens", "0.0,374,44", "4.3146,396,109"]
SERVEGEN = ["arrival_s,client,input_tokens,output_tokens", "1.075,59,75,83", "1.198,104,577,93"]
AZURE = [
    "TIMESTAMP,ContextTokens,GeneratedTokens",
    "2023-11-16 18:15:46.6805900,374,44",
    "2023-11-16 18:15:50.9951690,396,109",
]
MOONCAKE = [
    '{"timestamp": 0, "input_length": 1200, "output_length": 500, "hash_ids": [0, 1, 2]}',
    '{"timestamp": 3000, "input_length": 1536, "output_length": 7, "hash_ids": [0, 1, 9]}',
]
RAGPULSE = [
    '{"arrival_s":5,"session":0,"input_length":700,"output_length":154,"blocks":[[8302,512],[7,188]]}',
    '{"arrival_s":27,"session":1,"input_length":600,"output_length":1,"blocks":[[8302,512],[9,88]]}',
]
CODING = json.dumps(
    {
        "session": "0001",
        "block_tokens": 64,
        "requests": [
            {"t": 0.0, "agent": 0, "in": 640, "out": 169, "ids": [[1, 10]]},
            {"t": 19.0, "agent": 0, "in": 700, "out": 296, "ids": [[1, 8], [11, 12]]},
            {"t": 36.0, "agent": 0, "in": 9000, "out": 201, "ids": [[1, 140]]},
        ],
    }
)


def read(name: str, lines: list[str]) -> tuple[RequestSpec, ...]:
    return FORMATS[name](lines)


@pytest.mark.parametrize(("name", "lines"), [("csv", PLAIN), ("azure", AZURE)])
def test_rows_with_lengths_arrive_from_zero_on(name: str, lines: list[str]) -> None:
    first, second = read(name, lines)
    assert (first.arrival_s, first.prompt_tokens, first.output_tokens) == (0.0, 374, 44)
    assert second.arrival_s == pytest.approx(4.3146, abs=1e-3)
    assert first.segments[0].key != second.segments[0].key


def test_other_columns_do_not_matter() -> None:
    assert [spec.prompt_tokens for spec in read("csv", SERVEGEN)] == [75, 577]


def test_mooncake_blocks_are_shared_prefixes() -> None:
    specs = read("mooncake", MOONCAKE)
    assert [spec.prompt_tokens for spec in specs] == [1200, 1536]
    assert [spec.arrival_s for spec in specs] == [0.0, 3.0]
    hasher = BlockHasher(16)
    first, second = (hasher.hashes(spec.segments) for spec in specs)
    assert first[: 1024 // 16] == second[: 1024 // 16]
    assert first[1024 // 16] != second[1024 // 16]


def test_a_prompt_longer_than_its_blocks_ends_in_tokens_of_its_own() -> None:
    row = '{"timestamp": 0, "input_length": 600, "output_length": 5, "hash_ids": [4]}'
    (spec,) = read("mooncake", [row])
    assert [segment.tokens for segment in spec.segments] == [512, 88]


def test_ragpulse_passages_share_by_identity_and_place() -> None:
    first, second = read("ragpulse", RAGPULSE)
    assert first.segments[0] == second.segments[0]
    assert first.segments[1].key != second.segments[1].key
    assert second.arrival_s == 22.0


def test_coding_sessions_grow_beside_what_is_too_long() -> None:
    """That is the cut's to leave out, where it is counted, and needs no blocks."""
    specs = coding_jsonl([CODING], starts_s=[3.0], longest_tokens=4096)
    assert [spec.prompt_tokens for spec in specs] == [640, 700, 9000]
    assert len(specs[2].segments) == 1
    assert Cut(longest_tokens=4096).of(specs) == specs[:2]
    assert specs[1].arrival_s - specs[0].arrival_s == 19.0
    assert specs[0].segments[:8] == specs[1].segments[:8]
    assert specs[0].segments[8] != specs[1].segments[8]
    assert {spec.group for spec in specs} == {"session-1-0001"}


def test_sessions_of_one_name_are_two() -> None:
    """As where files were put together: two requests of one name end the run."""
    specs = coding_jsonl([CODING, "", CODING], starts_s=[0.0, 9.0], longest_tokens=4096)
    assert len({spec.id for spec in specs}) == len(specs) == 6
    assert len({spec.group for spec in specs}) == 2
    first, second = (spec for spec in specs if spec.prompt_tokens == 640)
    assert {s.key for s in first.segments}.isdisjoint(s.key for s in second.segments)


@pytest.mark.parametrize("starts", [[], [0.0, 1.0]])
def test_no_session_is_without_a_start(starts: list[float]) -> None:
    with pytest.raises(ValueError, match="zip"):
        coding_jsonl([CODING], starts_s=starts, longest_tokens=4096)


@pytest.mark.parametrize(
    ("name", "lines", "message"),
    [
        ("csv", ["arrival_s,input_tokens", "1,2"], "header is .* lacks output_tokens"),
        ("csv", [], "header is empty"),
        ("csv", PLAIN[:1], "no requests"),
        ("csv", [*PLAIN, "x,1,1"], "row 4: arrival_s is 'x': give seconds"),
        ("csv", [*PLAIN, "", "", "x,1,1"], "row 6: arrival_s is 'x'"),
        ("csv", [*PLAIN, "-1,1,1"], "row 4: arrival_s is '-1'"),
        ("csv", [*PLAIN, "1,0,1"], "row 4: input_tokens is '0': give a whole number of 1"),
        ("csv", [*PLAIN, "1,1.5,1"], "row 4: input_tokens is '1.5'"),
        ("csv", [*PLAIN, "1,2"], "row 4: output_tokens is None"),
        ("csv", [*PLAIN, "1,2,-1"], "row 4: output_tokens is '-1': give a whole number of 0"),
        ("azure", [*AZURE, "noon,1,1"], "row 4: TIMESTAMP is 'noon': give a date"),
        ("mooncake", ["{"], "row 1: not JSON"),
        ("mooncake", ["", "[1]"], "row 2: not an object"),
        ("mooncake", ['{"timestamp": 0, "input_length": 5}'], "row 1: hash_ids is None"),
        ("ragpulse", ['{"arrival_s": 0, "blocks": [[1]]}'], "row 1: blocks is .* pairs"),
        ("ragpulse", ['{"arrival_s": 0, "blocks": []}'], "row 1: blocks is .* at least one"),
    ],
)
def test_a_bad_row_is_named_with_its_field(name: str, lines: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read(name, lines)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"session": null, "block_tokens": 64}', "session is None: give a name"),
        ('{"session": "a", "block_tokens": 64, "requests": [1]}', "give objects with t"),
    ],
)
def test_a_bad_session_is_named(line: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        coding_jsonl([line], starts_s=[0.0], longest_tokens=100)


def test_a_session_without_enough_blocks_ends_in_tokens_of_its_own() -> None:
    entry = {"t": 0, "in": 100, "out": 1, "ids": [[1, 1]]}
    line = json.dumps({"session": "s", "block_tokens": 64, "requests": [entry]})
    (spec,) = coding_jsonl([line], starts_s=[2.0], longest_tokens=1000)
    assert [segment.tokens for segment in spec.segments] == [64, 36]


def test_blocks_beyond_the_end_of_a_prompt_are_none_of_it() -> None:
    entry = {"t": 0, "in": 100, "out": 1, "ids": [[1, 9]]}
    line = json.dumps({"session": "s", "block_tokens": 64, "requests": [entry]})
    (coding,) = coding_jsonl([line], starts_s=[0.0], longest_tokens=1000)
    row = '{"timestamp": 0, "input_length": 600, "output_length": 5, "hash_ids": [4, 5, 6]}'
    (mooncake,) = read("mooncake", [row])
    assert [segment.tokens for segment in coding.segments] == [64, 36]
    assert [segment.tokens for segment in mooncake.segments] == [512, 88]


def test_a_cut_keeps_part_of_a_trace() -> None:
    rows = [f"{i},{10 * i + 1},1" for i in range(100)]
    specs = read("csv", [PLAIN[0], *rows])
    cut = Cut(start_s=10.0, seconds=40.0, time_scale=0.5, keep=0.25, longest_tokens=400)
    kept = cut.of(specs)
    assert len(kept) == 7  # 10 to 39 s are short enough, every fourth is kept
    assert kept[0].arrival_s == pytest.approx(1.5)
    assert all(spec.prompt_tokens <= 400 for spec in kept)
    assert Cut().of(specs) == specs


NO_ANSWER = {
    "csv": [PLAIN[0], "0,9,0", "1,9,4"],
    "azure": [AZURE[0], AZURE[1].removesuffix("44") + "0", AZURE[2]],
    "mooncake": [MOONCAKE[0].replace("500", "0"), MOONCAKE[1]],
    "ragpulse": [RAGPULSE[0].replace("154", "0"), RAGPULSE[1]],
}


@pytest.mark.parametrize(("name", "lines"), NO_ANSWER.items())
def test_a_cut_leaves_out_requests_that_got_no_token(name: str, lines: list[str]) -> None:
    specs = read(name, lines)
    assert [bool(spec.output_tokens) for spec in specs] == [False, True]
    assert Cut().of(specs) == specs[1:]
    assert [Cut(seconds=0.5).covers(spec) for spec in specs] == [True, False]


def test_a_coding_session_goes_on_after_a_request_that_got_no_token() -> None:
    specs = coding_jsonl([CODING.replace("169", "0")], starts_s=[0.0], longest_tokens=4096)
    assert [spec.output_tokens for spec in specs] == [0, 296, 201]


def test_a_cut_out_of_range_is_refused() -> None:
    with pytest.raises(ConfigError, match="keep 2"):
        Cut(keep=2.0)


def test_the_peak_is_where_most_tokens_arrive() -> None:
    rows = ["0,100,1", "50,900,1", "55,900,1", "100,1000,1"]
    specs = read("csv", [PLAIN[0], *rows])
    assert peak_start_s(specs, window_s=10.0) == 50.0
    with pytest.raises(ConfigError, match="no requests"):
        peak_start_s((), window_s=10.0)


def test_a_trace_can_be_offline_work() -> None:
    specs = as_offline(read("csv", PLAIN))
    assert [spec.arrival_s for spec in specs] == [0.0, 0.0]
    assert {spec.klass for spec in specs} == {RequestClass.OFFLINE}
    assert len({spec.id for spec in specs}) == 2


def test_rows_of_two_files_share_no_prompt() -> None:
    hasher = BlockHasher(16)

    def hashes(specs: tuple[RequestSpec, ...]) -> set[BlockHash]:
        return {found for spec in specs for found in hasher.hashes(spec.segments)}

    online, offline = read("csv", PLAIN), as_offline(read("csv", SERVEGEN))
    assert len(hashes(offline)) == 75 // 16 + 577 // 16
    assert hashes(online).isdisjoint(hashes(offline))
    # A Mooncake row has blocks that other rows share, and a rest of its own.
    row = '{"timestamp": 0, "input_length": 700, "output_length": 5, "hash_ids": [4]}'
    same = hashes(read("mooncake", [row])) & hashes(as_offline(read("mooncake", [row])))
    assert len(same) == 512 // 16


def test_a_coding_session_is_the_same_offline() -> None:
    entry = {"t": 0, "in": 100, "out": 1, "ids": [[1, 1]]}
    line = json.dumps({"session": "s", "block_tokens": 64, "requests": [entry]})
    specs = coding_jsonl([line], starts_s=[0.0], longest_tokens=1000)
    assert as_offline(specs)[0].segments == specs[0].segments


def test_a_time_beyond_all_traces_is_named_and_one_in_milliseconds_is_none() -> None:
    """Mooncake's are milliseconds, which may be counted from 1970."""
    rows = [MOONCAKE[0].replace("0,", f"{time},", 1) for time in (1_700_000_000_000, 10**18)]
    (only,) = read("mooncake", rows[:1])
    assert only.arrival_s == 0.0
    with pytest.raises(ConfigError, match=r"row 2: timestamp is 10+: give at most 1e\+13: is it"):
        read("mooncake", rows)
