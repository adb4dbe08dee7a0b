"""Content errors: found in one pass, each with code, line and param (design.md §8.6)."""

from __future__ import annotations

import json
import subprocess
import sys
import tracemalloc
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given

from weir_controlplane.batches.line_reader import LineSource, LineTooLongError, RawLine, read_lines
from weir_controlplane.batches.validation import Findings, Rules, check_depth, validate
from weir_controlplane.files.storage import Storage
from weir_controlplane.store.line_index import IndexedLine, pack_lines

RULES = Rules(
    endpoint="/v1/chat/completions",
    models=frozenset({"tiny", "big"}),
    max_lines=500,
    max_json_depth=20,
    default_output_tokens=256,
)


def value(custom_id: object = "a", **changes: object) -> dict[str, Any]:
    body = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}]}
    whole = {
        "custom_id": custom_id, "method": "POST", "url": "/v1/chat/completions", "body": body,
    }  # fmt: skip
    return whole | changes


def check(*lines: bytes | dict[str, Any], rules: Rules = RULES) -> Findings:
    contents = [line if isinstance(line, bytes) else json.dumps(line).encode() for line in lines]
    return validate([RawLine(n, 0, content) for n, content in enumerate(contents, 1)], rules)


@pytest.mark.parametrize(
    ("second", "code", "param"),
    [
        (b"{", "invalid_json_line", None),
        (b"[]", "invalid_json_line", None),
        (b"", "invalid_json_line", None),
        (b"\xff\xfe", "invalid_json_line", None),
        (b'{"custom_id": NaN}', "invalid_json_line", None),
        (b"[" * 100_000, "invalid_json_line", None),
        (value(custom_id=7), "invalid_json_line", "custom_id"),
        (value(custom_id=""), "invalid_json_line", "custom_id"),
        (value(custom_id="x" * 513), "invalid_json_line", "custom_id"),
        (value("b", method="GET"), "invalid_json_line", "method"),
        (value("b", body="x"), "invalid_json_line", "body"),
        (value("a"), "duplicate_custom_id", "custom_id"),
        (value("b", url="/v1/embeddings"), "url_mismatch", "url"),
        (value("b", url=None), "url_mismatch", "url"),
        (value("b", body={"model": "big"}), "model_mismatch", "body.model"),
        (value("b", body={"model": None}), "model_mismatch", "body.model"),
        (value("b", body={}), "model_mismatch", "body.model"),
    ],
)
def test_a_content_error_names_code_line_and_field(
    second: bytes | dict[str, Any], code: str, param: str | None
) -> None:
    found = check(value("a"), second, value("c"))
    assert [(error.code, error.line, error.param) for error in found.errors] == [(code, 2, param)]
    assert found.errors[0].message
    assert found.lines == []  # nothing of the batch may run


@pytest.mark.parametrize(
    ("second", "message"),
    [
        (b'{"custom_id": "b",}', "character 19 of the line"),
        (b"\xef\xbb\xbf{}", "byte order mark; save the file as UTF-8 without one"),
        (b"\xff\xfe{\0}\0", "byte order mark"),
        (b'{"custom_id": "\xe9"}', "byte 16 of the line is not UTF-8"),
        (b" ", "the line is empty"),
        (b'{"custom_id": NaN}', "NaN is no number of JSON"),
        (b'{"custom_id": ' + b"9" * 5000 + b"}", "4300 digits"),
    ],
)
def test_a_line_that_is_no_json_is_told_why(second: bytes, message: str) -> None:
    (error,) = check(value("a"), second, value("c")).errors
    assert message in error.message
    assert "line 1" not in error.message  # it is line 2: that is said beside it


def test_an_unknown_model_is_a_mismatch() -> None:
    found = check(value("a", body={"model": "huge"}))
    assert found.errors[0].code == "model_mismatch"
    assert "no service serves 'huge'; served: 'big', 'tiny'" in found.errors[0].message


@pytest.mark.parametrize("lines", [(), (b"",), (b"  ", b"\t", b"")])
def test_a_file_without_lines_is_empty(lines: tuple[bytes, ...]) -> None:
    found = check(*lines)
    assert [(error.code, error.line) for error in found.errors] == [("empty_file", None)]


def test_trailing_blank_lines_are_no_lines() -> None:
    found = check(value("a"), value("b"), b"", b" ")
    assert found.errors == []
    assert [line.line for line in found.lines] == [1, 2]


def test_however_many_blank_lines_trail_they_are_no_lines() -> None:
    found = check(value("a"), *([b" "] * 1000))
    assert (found.errors, len(found.lines)) == ([], 1)
    found = check(value("a"), *([b""] * 1000), value("b"))
    assert [error.line for error in found.errors] == list(range(2, 102))


def test_blank_lines_are_not_kept() -> None:
    """§8, Security: they may be as long as others, and a hundred of them wait for the next line."""
    blanks = (RawLine(number, 0, b" " * (1 << 20)) for number in range(1, 64))
    tracemalloc.start()
    try:
        found = validate(blanks, RULES)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert [error.code for error in found.errors] == ["empty_file"]
    assert peak_bytes < 8 << 20


def test_the_first_hundred_errors_are_listed() -> None:
    found = check(*([b"{"] * 300))
    assert [error.line for error in found.errors] == list(range(1, 101))


def test_too_many_lines_are_refused_where_they_begin() -> None:
    found = check(*(value(f"c{number}") for number in range(501)))
    assert [(error.code, error.line) for error in found.errors] == [("too_many_lines", 501)]


@pytest.mark.parametrize(
    "body",
    [
        {"messages": [{"role": "wizard", "content": "x"}]},
        {"messages": "not a list"},
        {"messages": [[1, {"deep": None}], 7, None]},
        {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
        {"messages": [{"role": "user", "content": "x" * 100_000}]},
        {"messages": [], "temperature": "hot", "max_tokens": -3},
        {"prompt": [1, 2, 3], "max_tokens": True},
        {"prompt": None},
        {"messages": [{"role": "user", "content": "\ud800"}]},
        {},
    ],
)
def test_what_an_engine_would_refuse_is_no_content_error(body: dict[str, Any]) -> None:
    """§8.6: execution errors are that line's alone, found in the engine."""
    found = check(value("a"), value("b", body={"model": "tiny", **body}))
    assert found.errors == []
    assert [line.line for line in found.lines] == [1, 2]


def test_estimates_count_the_prompt_and_the_output_bound() -> None:
    body = {"model": "tiny", "prompt": "x" * 4000, "max_tokens": 50}
    found = check(value("a", body=body))
    assert found.lines[0].prompt_tokens == pytest.approx(1000, abs=2)
    assert found.lines[0].output_tokens == 50
    assert found.tokens == found.lines[0].prompt_tokens + 50


@pytest.mark.parametrize(
    ("more", "times"),
    [
        ({}, 1),
        ({"n": 8}, 8),
        ({"n": 8.0}, 8),
        ({"best_of": 8}, 8),
        ({"n": 2, "best_of": 8}, 8),
        ({"prompt": ["a"] * 8}, 8),
        ({"prompt": [[1, 2]] * 8}, 8),
        ({"prompt": ["a"] * 4, "n": 2}, 8),
        ({"prompt": [1, 2, 3]}, 1),
        ({"prompt": []}, 1),
        ({"max_tokens": 400.0}, 8),
    ],
)
def test_the_output_of_all_choices_and_prompts_counts(more: dict[str, Any], times: int) -> None:
    """A tenant has its quota and its share by these estimates."""
    body = {"model": "tiny", "prompt": "a", "max_tokens": 50, **more}
    (line,) = check(value("a", body=body)).lines
    assert line.output_tokens == times * 50


@pytest.mark.parametrize("name", ["n", "best_of", "max_tokens"])
@pytest.mark.parametrize(
    "wrong", ["9" * 400, "1e999", "-1e999", "1e18", "-8", "0", "0.5", "true", '"8"', "null", "[8]"]
)
def test_no_number_makes_an_estimate_that_cannot_be_kept(name: str, wrong: str) -> None:
    body = {"model": "tiny", "prompt": ["a"] * 1000, name: "WRONG"}
    content = json.dumps(value("a", body=body)).replace('"WRONG"', wrong).encode()
    (line,) = check(content).lines
    assert 256 * 128 <= line.output_tokens <= 1 << 27
    tokens = line.prompt_tokens + line.output_tokens
    place = IndexedLine(line=1, offset_bytes=0, length_bytes=len(content), tokens=tokens)
    assert pack_lines([place])


def assistant(**more: object) -> dict[str, Any]:
    return {"messages": [{"role": "assistant", "content": "x" * 600, **more}]}


LONG = "y" * 400_000


@pytest.mark.parametrize(
    "body",
    [
        assistant(tool_calls=[{"id": "c", "function": {"name": "f", "arguments": LONG}}]),
        assistant(reasoning_content=LONG),
        assistant(**{LONG: 1}),
        {**assistant(), "documents": [{"title": "t", "text": LONG}]},
        {**assistant(), "chat_template_kwargs": {"documents": [LONG]}},
        assistant(content=[{"type": "refusal", "text": "x" * 600, "refusal": LONG}]),
    ],
    ids=["tool_calls", "reasoning", "name", "documents", "kwargs", "part"],
)
def test_all_that_a_chat_template_may_render_is_counted(body: dict[str, Any]) -> None:
    """It counts for the quota; what lines are put in order by is the text alone."""
    (plain,) = check(value("a", body={"model": "tiny", **assistant()})).lines
    (long,) = check(value("a", body={"model": "tiny", **body})).lines
    assert plain.prompt_tokens < 200
    assert 100_000 <= long.prompt_tokens < 101_000
    assert long.key == plain.key != b""


def test_what_is_counted_beside_the_text_is_counted_once() -> None:
    parts = [{"type": "image_url", "image_url": {"url": LONG}}]
    tools = [{"type": "function", "function": {"name": "f", "description": LONG}}]
    body = {"model": "tiny", **assistant(content=parts, name=None), "tools": tools}
    (line,) = check(value("a", body=body)).lines
    assert 200_000 <= line.prompt_tokens < 201_000


@pytest.mark.parametrize(
    ("content", "allowed"),
    [
        (b'{"a": "' + b"[" * 50 + b'"}', True),  # brackets in text are no nesting
        (b'{"a": "\\"' + b"[" * 50 + b'"}', True),
        (b"[[[[[" + b"]" * 5 + b"," + b"[]" * 30, True),
        (b"[" * 6 + b"]" * 6, False),
        (b'{"a":' * 6 + b"1" + b"}" * 6, False),
    ],
)
def test_depth_is_found_before_anything_is_built(content: bytes, *, allowed: bool) -> None:
    assert check_depth(content, 5) is allowed


MEASURED = """
import re
from pathlib import Path
from weir_controlplane.batches.validation import check_depth

def peak_kib():
    return int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1])

content = b'{"brackets": "' + b"[" * 70 + b'", "text": "' + {text} + b'"}'
before = peak_kib()
assert check_depth(content, 64)
print(peak_kib() - before)
"""


@pytest.mark.parametrize(
    ("unit", "end"),
    [(b"xx", b""), (rb"\n", b""), (rb"\"", b""), (rb"\"", b"\\")],
    ids=["plain", "escapes", "quotes", "endless"],
)
def test_a_long_string_costs_little_memory_and_time(unit: bytes, end: bytes) -> None:
    """§8, Security: bounds hold before memory is taken."""
    program = MEASURED.replace("{text}", f"{unit!r} * (2 << 20) + {end!r}")
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=240
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 32 << 10


async def _stored(storage: Storage, content: bytes) -> LineSource:
    async with storage.writer("f") as writer:
        await writer.write(content)
    return LineSource(storage_key="f", size_bytes=len(content), sha256=writer.sha256)


@pytest.mark.parametrize("block_bytes", [1, 3, 7, 1 << 20])
async def test_lines_are_read_with_their_places(
    tmp_path_factory: pytest.TempPathFactory, block_bytes: int
) -> None:
    storage = Storage(f"file://{tmp_path_factory.mktemp('s')}")
    content = b"one\n\ntwo two\nlast"
    source = await _stored(storage, content)
    lines = list(read_lines(storage, source, bound_bytes=100, block_bytes=block_bytes))
    assert [line.content for line in lines] == [b"one", b"", b"two two", b"last"]
    assert [line.line for line in lines] == [1, 2, 3, 4]
    for line in lines:
        end = line.offset_bytes + len(line.content)
        assert content[line.offset_bytes : end] == line.content


def places(content: bytes) -> dict[int, tuple[int, bytes]]:
    """Each line's place and content, by its number."""
    found, offset_bytes = {}, 0
    for number, line in enumerate(content.removesuffix(b"\n").split(b"\n"), 1):
        found[number] = (offset_bytes, line)
        offset_bytes += len(line) + 1
    return found


@given(
    content=st.lists(st.sampled_from([b"\n", b"\n" * 150, b" \r\n", b" ", b"a"])).map(b"".join),
    block_bytes=st.integers(1, 400),
)
async def test_blank_lines_that_are_left_out_move_no_other(
    tmp_path_factory: pytest.TempPathFactory, content: bytes, block_bytes: int
) -> None:
    storage = Storage(f"file://{tmp_path_factory.mktemp('s')}")
    source = await _stored(storage, content)
    lines = read_lines(storage, source, bound_bytes=100, block_bytes=block_bytes)
    got = {line.line: (line.offset_bytes, line.content) for line in lines}
    wanted = places(content) if content else {}
    assert all(wanted[number] == place for number, place in got.items())
    assert not any(wanted[number][1].strip() for number in wanted.keys() - got.keys())


async def test_a_file_of_line_ends_is_read_in_no_time(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """Each was made a line: 200 MiB of them took the time of all other tenants for minutes."""
    storage = Storage(f"file://{tmp_path_factory.mktemp('s')}")
    source = await _stored(storage, b"\n" * (4 << 20))
    assert len(list(read_lines(storage, source, bound_bytes=100))) <= 400


@pytest.mark.parametrize("content", [b"ok\n" + b"x" * 101, b"ok\n" + b"x" * 101 + b"\nok"])
async def test_an_endless_line_is_refused_before_it_is_kept(
    tmp_path_factory: pytest.TempPathFactory, content: bytes
) -> None:
    storage = Storage(f"file://{tmp_path_factory.mktemp('s')}")
    source = await _stored(storage, content)
    lines = read_lines(storage, source, bound_bytes=100, block_bytes=16)
    with pytest.raises(LineTooLongError, match="line 2 is longer than 100 bytes"):
        list(lines)
    again = read_lines(storage, source, bound_bytes=100, block_bytes=16)
    found = validate(again, RULES)
    assert [(error.code, error.line) for error in found.errors][-1] == ("invalid_json_line", 2)
