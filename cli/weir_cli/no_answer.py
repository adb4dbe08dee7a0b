"""What to do when a control plane gives no answer: by the error, and by what stands in between."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import httpx

CUT_SHORT = (httpx.ReadError, httpx.WriteError, httpx.RemoteProtocolError)


def remedy_for(error: BaseException, url: str) -> str:
    """The remedy for an error of the transport on the way to ``url``."""
    causes = list(_causes(error))
    if any(isinstance(cause, ssl.SSLCertVerificationError) for cause in causes):
        return (
            "give --url or WEIR_URL with the name that the certificate is for, and set "
            "SSL_CERT_FILE to the certificate of its authority, or to itself if it is self-signed"
        )
    if any(isinstance(cause, ssl.SSLError) for cause in causes):
        return "check whether --url or WEIR_URL is https or http: `weir serve controlplane` is http"
    ways = ["check --url or WEIR_URL, and that the control plane runs (`weir serve controlplane`)"]
    if isinstance(error, CUT_SHORT):
        ways.insert(0, "try again: the connection ended in the middle")
    return "; ".join([*ways, *_without_proxy(url)])


def remedy_for_strange(url: str) -> str:
    """The remedy where something answers in the control plane's place."""
    ways = ["what answered is not the control plane: check --url or WEIR_URL, and what is between"]
    return "; ".join([*ways, *_without_proxy(url)])


def _without_proxy(url: str) -> list[str]:
    if not _has_proxy(url):
        return []
    return ["the environment has a proxy on the way: NO_PROXY names hosts without one"]


def _has_proxy(url: str) -> bool:
    """Whether the environment names a proxy for ``url``."""
    parts = urlsplit(url)
    proxies = getproxies()
    named = proxies.get(parts.scheme) or proxies.get("all")
    return bool(named) and not proxy_bypass(parts.netloc)


def _causes(error: BaseException) -> Iterator[BaseException]:
    """The error, what it came of, and so on."""
    found: BaseException | None = error
    while found is not None:
        yield found
        found = found.__cause__ or found.__context__
