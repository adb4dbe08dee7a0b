"""Bytes to and from URIs that were allowed: fsspec for folders and S3, plain GET for HTTP.

HTTP follows no redirect and connects to the very address that was checked (§8 Security).
"""

from __future__ import annotations

import asyncio
import functools
import ipaddress
import socket
import ssl
import time
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from dataclasses import dataclass
from http import HTTPStatus

import httpx

from weir_controlplane.errors import StorageError
from weir_controlplane.files.storage import Storage, storage_errors
from weir_controlplane.files.storage_writer import StorageWriter
from weir_controlplane.files.threads import in_thread
from weir_controlplane.uris.opened import PLACE, opened_folder, opened_object
from weir_controlplane.uris.rules import Uri, UriRefusedError

BLOCK_BYTES = 8 << 20
HTTP_TIMEOUT_S = 30.0
# Of a server, on the whole: one byte now and then would keep whoever reads for ever.
MIN_BYTES_PER_S = 64 << 10
PATIENCE_S = 180.0  # how long it may fall behind that
_HTTPS_PORT, _HTTP_PORT = 443, 80
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
_Address = ipaddress.IPv4Address | ipaddress.IPv6Address


class UriUnreadableError(Exception):
    """What a URI names cannot be read, and asking again would not help; says why."""


@dataclass(frozen=True, kw_only=True)
class UriAccess:
    """Reads and writes URIs. ``private_hosts``: names that may lead to private addresses."""

    private_hosts: Collection[str] = ()

    async def read(self, uri: Uri, prefix: Uri) -> AsyncIterator[bytes]:
        """The bytes of an object, block by block; ``prefix`` is what allows it.

        Raises:
            UriUnreadableError: there is no such object, or the server refuses.
            UriRefusedError: it leads to an address or a folder that is not allowed.
            StorageError: the store fails, or is too slow; another time it may not.
        """
        if uri.scheme in {"http", "https"}:
            async for block in _in_time(self._get(uri)):
                yield block
            return
        try:
            storage, key = await _place(opened_object, uri, prefix)
            async for block in _of_one_object(storage, key, changes=uri.scheme == "s3"):
                yield block
        except StorageError as error:
            if isinstance(error.__cause__, (FileNotFoundError, IsADirectoryError)):
                raise UriUnreadableError("there is no such object") from error
            if isinstance(error.__cause__, PermissionError):
                raise UriUnreadableError("the control plane may not read it") from error
            raise

    async def write(self, uri: Uri, prefix: Uri, blocks: AsyncIterator[bytes]) -> None:
        """Writes an object: it appears whole or not at all.

        Raises:
            UriRefusedError: it leads to a folder that is not allowed.
            StorageError: the store fails.
            StorageFullError: it has no room.
        """
        storage, key = await _place(opened_folder, uri, prefix)
        async with storage.writer(key) as writer:
            await _copy(blocks, writer)

    async def _get(self, uri: Uri) -> AsyncIterator[bytes]:
        address = await self._checked_address(uri)
        # Connected to the address that was checked; name and certificate stay the host's.
        url = httpx.URL(uri.url)
        request = httpx.Request(
            "GET",
            url.copy_with(host=address),
            headers={"Host": url.netloc.decode("ascii"), "Accept-Encoding": "identity"},
            extensions={"sni_hostname": url.host},
        )
        try:
            async with httpx.AsyncClient(
                verify=await asyncio.to_thread(public_authorities),
                timeout=HTTP_TIMEOUT_S,
                trust_env=False,
            ) as client:
                request.extensions["timeout"] = httpx.Timeout(HTTP_TIMEOUT_S).as_dict()
                response = await client.send(request, stream=True, follow_redirects=False)
                try:
                    _check_status(response.status_code)
                    async for block in response.aiter_raw():
                        yield block
                finally:
                    await response.aclose()
        except httpx.HTTPError as error:
            raise StorageError(f"the server failed: {type(error).__name__}") from error

    async def _checked_address(self, uri: Uri) -> str:
        host, _, port = uri.authority.partition(":")
        default = _HTTPS_PORT if uri.scheme == "https" else _HTTP_PORT
        try:
            found = await asyncio.get_running_loop().getaddrinfo(
                host, int(port or default), type=socket.SOCK_STREAM
            )
        except (OSError, UnicodeError) as error:  # the latter: a label is empty or too long
            raise StorageError(f"the host {host} cannot be resolved") from error
        addresses = [str(item[4][0]) for item in found]
        if host not in self.private_hosts:
            check_public(host, addresses)
        return addresses[0]


@functools.cache
def public_authorities() -> ssl.SSLContext:
    """Those of HTTPS, read once: it takes up to a tenth of a second."""
    return httpx.create_ssl_context(trust_env=False)


async def _in_time(blocks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """The same blocks, for as long as they come fast enough; what is done with them takes none.

    Raises:
        StorageError: they do not.
    """
    left_s = PATIENCE_S
    while True:
        asked_s = time.monotonic()
        try:
            async with asyncio.timeout(left_s):
                block = await anext(blocks, None)
        except TimeoutError:
            raise StorageError(
                f"the server gives less than {MIN_BYTES_PER_S >> 10} KiB a second"
            ) from None
        if block is None:
            return
        earned_s = len(block) / MIN_BYTES_PER_S
        left_s = min(PATIENCE_S, left_s - (time.monotonic() - asked_s) + earned_s)
        yield block


def check_public(host: str, addresses: Sequence[str]) -> None:
    """Checks that every address of a host is a public one.

    Raises:
        UriRefusedError: one is not, and the administrator has not named the host.
    """
    for text in addresses:
        if not _is_public(_reached(ipaddress.ip_address(text))):
            raise UriRefusedError(f"{host} is at a private address, which no administrator allowed")


def _is_public(address: _Address) -> bool:
    if isinstance(address, ipaddress.IPv6Address) and address.is_site_local:
        return False
    return address.is_global and not (address.is_multicast or address.is_reserved)


def _reached(address: _Address) -> _Address:
    """The IPv4 address that an IPv6 one stands for, where a network translates or tunnels it."""
    if not isinstance(address, ipaddress.IPv6Address):
        return address
    if address in _NAT64:
        return ipaddress.IPv4Address(int(address) & 0xFFFF_FFFF)
    return address.ipv4_mapped or address.sixtofour or address


def _check_status(status: int) -> None:
    if status == HTTPStatus.OK:
        return
    if status in {HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.REQUEST_TIMEOUT} or status >= 500:
        raise StorageError(f"the server answers {status}")
    raise UriUnreadableError(f"the server answers {status}; redirects are not followed")


async def _place(
    opened: Callable[[Uri, Uri], tuple[Storage, str]], uri: Uri, prefix: Uri
) -> tuple[Storage, str]:
    """The store that a URI is in, and its key there.

    Raises:
        UriRefusedError: a symbolic link leads out of the prefix.
        StorageError: the store fails, or its library is missing.
    """
    if uri.scheme == "file":
        with storage_errors((OSError,), called=PLACE):
            return await in_thread(opened, uri, prefix)
    try:
        return Storage(uri.folder.text, called=PLACE), uri.name
    except ValueError as error:
        raise StorageError(str(error)) from error


async def _of_one_object(storage: Storage, key: str, *, changes: bool) -> AsyncIterator[bytes]:
    """Its blocks. ``changes``: each is asked for by its name, not from a file that is open.

    Raises:
        StorageError: another object has taken its place meanwhile.
    """
    version = await storage.version(key) if changes else None
    async for block in storage.stream(key, block_bytes=BLOCK_BYTES):
        yield block
    if changes and await storage.version(key) != version:
        raise StorageError("the object was replaced while it was read")


async def _copy(blocks: AsyncIterator[bytes], writer: StorageWriter) -> None:
    async for block in blocks:
        await writer.write(block)
