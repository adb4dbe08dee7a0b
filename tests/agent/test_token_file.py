"""The agent's ServiceAccount token: from a file, read again as it is rotated."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

from weir_agent.control_plane import TOKEN_KEPT_S, TokenFileAuth


class Seen:
    """A server that notes the tokens it was shown, and accepts one."""

    def __init__(self, accepted: str) -> None:
        self.accepted = accepted
        self.tokens: list[str] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        token = request.headers["authorization"].removeprefix("Bearer ")
        self.tokens.append(token)
        return httpx.Response(200 if token == self.accepted else 401)


async def test_a_rotated_token_is_read_again(tmp_path: Path) -> None:
    file, now_s, server = tmp_path / "token", [0.0], Seen("one")
    file.write_text("one\n")
    auth = TokenFileAuth(file, clock_s=lambda: now_s[0])
    async with httpx.AsyncClient(auth=auth, transport=httpx.MockTransport(server)) as client:
        assert (await client.get("http://plane/")).status_code == 200
        file.write_text("two")
        assert (await client.get("http://plane/")).status_code == 200
        now_s[0] += TOKEN_KEPT_S
        server.accepted = "two"
        assert (await client.get("http://plane/")).status_code == 200
    assert server.tokens == ["one", "one", "two"]


async def test_a_refused_token_is_read_again_at_once(tmp_path: Path) -> None:
    file, server = tmp_path / "token", Seen("two")
    file.write_text("one")
    auth = TokenFileAuth(file, clock_s=lambda: 0.0)
    async with httpx.AsyncClient(auth=auth, transport=httpx.MockTransport(server)) as client:
        assert (await client.get("http://plane/")).status_code == 401
        file.write_text("two")
        assert (await client.get("http://plane/")).status_code == 200


async def test_a_missing_file_is_a_transport_error_that_names_it(tmp_path: Path) -> None:
    auth = TokenFileAuth(tmp_path / "token")
    transport = httpx.MockTransport(Seen("x"))
    async with httpx.AsyncClient(auth=auth, transport=transport) as client:
        with pytest.raises(httpx.TransportError, match="control_plane_token_file"):
            await client.get("http://plane/")
