"""What the agent makes of answers that are none of a control plane."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import httpx
import pytest
from pydantic import ValidationError

from weir_agent import wire
from weir_agent.chunks.spool import Sealed
from weir_agent.control_plane import ControlPlaneError, HttpControlPlane

LEASE = wire.Lease(chunk_id="chunk", attempt=1, nonce="n", lines=4)
SYNC = wire.SyncRequest(
    boot_id="boot",
    incarnation=None,
    sequence=1,
    service="chat",
    models=(),
    state="serving",
    room=wire.Room(lines=0, tokens=0, result_bytes=0),
)
COMMIT = wire.CommitRequest(attempt=1, nonce="n", upload_id="upload", lines=((1, 4),), final=True)
RESULTS = Sealed(sha256="0" * 64, size_bytes=4, lines=(1, 2, 3, 4), blocks=lambda: iter([b"1234"]))


async def lines_of(response: httpx.Response) -> list[wire.InputLine]:
    transport = httpx.MockTransport(lambda _request: response)
    async with httpx.AsyncClient(base_url="http://weir.test", transport=transport) as client:
        plane = HttpControlPlane(client, agent_id="agent-1", sync_timeout_s=5)
        return await plane.lines(LEASE, after=0, limit=10)


async def test_a_redirect_is_told_with_its_remedy() -> None:
    answer = httpx.Response(308, headers={"location": "https://weir.test/"})
    with pytest.raises(ControlPlaneError, match=r"https://weir.test/: .* WEIR_CONTROL_PLANE_URL"):
        await lines_of(answer)


@pytest.mark.parametrize(
    ("status", "setting"), [(401, "WEIR_CONTROL_PLANE_KEY"), (403, "WEIR_AGENT_ID")]
)
async def test_a_wrong_key_is_told_with_its_setting(status: int, setting: str) -> None:
    error = {"message": "no", "code": "invalid_api_key"}
    with pytest.raises(ControlPlaneError, match=rf"{status} invalid_api_key: no .*{setting}") as no:
        await lines_of(httpx.Response(status, json={"error": error}))
    assert no.value.retry


@pytest.mark.parametrize("status", [302, 308, 400, 404, 405, 409, 410, 413, 422])
async def test_what_a_proxy_says_is_no_verdict(status: int) -> None:
    """Results are kept until the control plane itself says what becomes of them (§8 rule 3)."""
    for page in (b"<html>default backend</html>", b"[" * 100_000):
        with pytest.raises(ControlPlaneError) as refusal:
            await lines_of(httpx.Response(status, content=page))
        assert refusal.value.retry
    told = httpx.Response(404, json={"error": {"message": "no", "code": "stale_lease"}})
    with pytest.raises(ControlPlaneError) as refusal:
        await lines_of(told)
    assert (refusal.value.code, refusal.value.retry) == ("stale_lease", False)


@pytest.mark.parametrize(
    ("call", "within_s"),
    [
        (lambda plane: plane.sync(SYNC), 0.1),
        (lambda plane: plane.lines(LEASE, after=0, limit=10), 0.25),
        (lambda plane: plane.upload(LEASE, RESULTS), 0.25),
        (lambda plane: plane.commit("chunk", COMMIT), 0.25),
    ],
    ids=["sync", "lines", "upload", "commit"],
)
async def test_a_call_whose_answer_trickles_ends_in_time(
    call: Callable[[HttpControlPlane], Awaitable[object]], within_s: float
) -> None:
    """No lease was renewed meanwhile, a drain waited for it, and no chunk got lines.

    An upload kept one of the places in which results are delivered.
    """

    async def trickle() -> AsyncIterator[bytes]:
        while True:
            yield b" "
            await asyncio.sleep(0.02)

    transport = httpx.MockTransport(lambda _request: httpx.Response(200, content=trickle()))
    async with httpx.AsyncClient(
        base_url="http://weir.test", transport=transport, timeout=0.05
    ) as client:
        plane = HttpControlPlane(client, agent_id="agent-1", sync_timeout_s=0.1)
        with pytest.raises(ControlPlaneError, match=f"no whole answer within {within_s} s") as slow:
            await call(plane)
    assert slow.value.retry


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("lease_s", "NaN"),
        ("lease_s", "-1"),
        ("lease_s", "1e999"),
        ("lease_s", "1e300"),
        ("offline_kv_blocks", "-1"),
        ("offline_kv_blocks", "9223372036854775808"),
        ("offline_seq_slots", "1" + "0" * 400),
        ("step_budget_s", "NaN"),
    ],
)
async def test_a_policy_that_no_engine_can_be_given_is_named(name: str, value: str) -> None:
    """Counts of more than 64 bits failed in the exchange with the engine, once a second.

    A policy that ends in no year would keep batch lines running without a control plane.
    """
    policy = {"lease_s": "10", "offline_kv_blocks": "1", "offline_seq_slots": "1", name: value}
    members = ", ".join(f'"{member}": {number}' for member, number in policy.items())
    content = f'{{"incarnation": 1, "policy": {{{members}}}}}'.encode()
    transport = httpx.MockTransport(lambda _request: httpx.Response(200, content=content))
    async with httpx.AsyncClient(base_url="http://weir.test", transport=transport) as client:
        plane = HttpControlPlane(client, agent_id="agent-1", sync_timeout_s=60)
        with pytest.raises(ControlPlaneError, match=rf"SyncReply\.policy\.{name}: ") as unreadable:
            await plane.sync(SYNC)
    assert unreadable.value.retry


@pytest.mark.parametrize(
    "content",
    [
        b"<html>a proxy</html>",
        b"7\n",
        b'{"line": 0, "url": "/v1", "body": {}}\n',
        b"[" * 100_000,
    ],
)
async def test_a_page_that_cannot_be_read_is_asked_for_again(content: bytes) -> None:
    with pytest.raises(ControlPlaneError) as refusal:
        await lines_of(httpx.Response(200, content=content))
    assert (refusal.value.code, refusal.value.retry) == ("unreadable_reply", True)


async def test_online_responses_go_on_while_a_page_is_read() -> None:
    """A page may have 8 MiB, and its lines are parsed in the loop that streams to clients."""
    turns = 0

    async def stream() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    record = b'{"line": %d, "url": "/v1/completions", "body": {"prompt": "x"}}\n'
    content = b"".join(record % line for line in range(1, 257))
    streaming = asyncio.create_task(stream())
    try:
        assert len(await lines_of(httpx.Response(200, content=content))) == 256
    finally:
        streaming.cancel()
    assert turns >= 256


@pytest.mark.parametrize("chunk_id", ["", "..", "a/b", "/etc"])
def test_what_names_a_folder_names_none_elsewhere(chunk_id: str) -> None:
    """A chunk that is lost is deleted with its folder."""
    with pytest.raises(ValidationError, match=r"lost\.0"):
        wire.SyncReply(incarnation=1, lost=(chunk_id,))


@pytest.mark.parametrize(
    "body", [r'{"prompt": "\ud83d"}', r'{"\ud83d": 1}', f'{{"prompt": {"[" * 400}{"]" * 400}}}']
)
async def test_whatever_a_user_may_write_can_be_read(body: str) -> None:
    """Half a surrogate pair, and nesting as deep as a control plane can be set to allow."""
    content = f'{{"line": 3, "url": "/v1/completions", "body": {body}}}\n'
    (line,) = await lines_of(httpx.Response(200, content=content.encode()))
    assert line.line == 3
