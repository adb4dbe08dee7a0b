"""The client counts tokens and times from raw bytes, however they were cut on the way."""

import asyncio
import contextlib
import json
import time

import pytest

from weir_cli.loadlab.feeders import Target, feed_online
from weir_cli.loadlab.records import RequestRecord, online_latency, token_counts
from weir_cli.loadlab.scrape import engine_counters, parse_page
from weir_cli.loadlab.streaming import HttpError, parse_answer, parse_stream, stream_completion
from weir_cli.loadlab.workload import OnlineRequest

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


def event(text: str, ids: list[int]) -> bytes:
    chunk = {"choices": [{"text": text, "token_ids": ids}]}
    return b"data: " + json.dumps(chunk).encode() + b"\n\n"


def chunked(*payloads: bytes) -> bytes:
    framed = b"".join(b"%x\r\n%s\r\n" % (len(payload), payload) for payload in payloads)
    return framed + b"0\r\n\r\n"


def test_each_token_has_the_time_at_which_its_bytes_arrived() -> None:
    first, second = chunked(event("a", [1]))[:-5], chunked(event("bc", [2, 3]), b"data: [DONE]\n\n")
    completion = parse_stream(parse_answer([(1.0, HEAD + first), (1.5, second)]))
    assert [(e.at_s, e.count) for e in completion.events] == [(1.0, 1), (1.5, 2)]
    assert completion.text == "abc"


@pytest.mark.parametrize("size", [1, 7, 64])
def test_any_cut_of_the_bytes_gives_the_same_tokens(size: int) -> None:
    raw = HEAD + chunked(event("a", [1]), event("b", [2]), b"data: [DONE]\n\n")
    cuts = [(float(at), raw[at : at + size]) for at in range(0, len(raw), size)]
    completion = parse_stream(parse_answer(cuts))
    assert [e.count for e in completion.events] == [1, 1]
    assert completion.events[0].at_s < completion.events[1].at_s


def test_cached_tokens_come_from_the_usage_of_the_stream() -> None:
    usage = {"choices": [], "usage": {"prompt_tokens_details": {"cached_tokens": 96}}}
    raw = HEAD + chunked(
        event("a", [1]), b"data: " + json.dumps(usage).encode() + b"\n\n", b"data: [DONE]\n\n"
    )
    assert parse_stream(parse_answer([(1.0, raw)])).cached_tokens == 96


def test_a_stream_that_breaks_off_is_an_error() -> None:
    with pytest.raises(HttpError, match="broke off"):
        parse_stream(parse_answer([(1.0, HEAD + chunked(event("a", [1])))]))


async def test_a_refusal_carries_its_status_and_body() -> None:
    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 429 Too Many\r\nContent-Length: 4\r\n\r\nslow")
        writer.close()

    server = await asyncio.start_server(refuse, "127.0.0.1", 0)
    async with server:
        with pytest.raises(HttpError, match="429: slow"):
            await stream_completion("127.0.0.1", server.sockets[0].getsockname()[1], {})


async def test_what_is_not_answered_when_the_load_ends_has_failed() -> None:
    """Left out it would flatter whoever starves it; its prompt is no offline work either."""
    told = asyncio.Event()

    async def stall(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        if b"POST" in head:
            writer.write(HEAD + chunked(event("a", [1]))[:-5])
        await reader.read()  # until the client goes
        writer.close()

    records: list[RequestRecord] = []
    requests = [
        OnlineRequest(name=name, at_s=at_s, prompt="some words", max_tokens=4)
        for name, at_s in (("begun", 0.0), ("later", 60.0))
    ]
    server = await asyncio.start_server(stall, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        target = Target(host="127.0.0.1", port=port, model="m", extra={})
        start_s = time.monotonic()
        load = asyncio.create_task(
            feed_online(
                target,
                requests,
                start_s=start_s,
                done=records.append,
                watch=lambda *_: lambda *_: told.set(),
            )
        )
        await asyncio.wait_for(told.wait(), 10)
        load.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await load
    (record,) = records
    assert record.name == "begun"
    latency = online_latency(records, start_s=start_s, end_s=start_s + 30)
    assert (latency.requests, latency.failed, latency.ttft.count) == (1, 1, 0)
    counts = token_counts(records, start_s=start_s, end_s=start_s + 30)
    assert (counts.prompt, counts.output) == (len("some words"), 1)


def test_counters_are_read_by_name_and_source() -> None:
    page = """# HELP x
vllm:prompt_tokens_total{engine="0",model_name="m"} 120.0
vllm:prompt_tokens_by_source_total{engine="0",model_name="m",source="local_compute"} 20.0
vllm:prompt_tokens_by_source_total{engine="0",model_name="m",source="local_cache_hit"} 100.0
vllm:generation_tokens_total{engine="0",model_name="m"} 7.0
vllm:iteration_tokens_total_count{engine="0",model_name="m"} 5.0
"""
    counters = engine_counters(parse_page(page), at_s=1.0, cpu_s=0.5)
    assert (counters.prompt_tokens, counters.computed_prompt_tokens) == (120, 20)
    assert (counters.generation_tokens, counters.steps, counters.preemptions) == (7, 5, 0)
