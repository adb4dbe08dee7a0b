"""Which URIs are allowed: pure. Prefixes are matched on whole decoded segments (§8 Security)."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from urllib.parse import SplitResult, quote, unquote, urlsplit

SCHEMES = ("s3", "file", "https", "http")
WRITABLE_SCHEMES = ("s3", "file")
_AUTHORITY = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?(:[0-9]{1,5})?")
_REFUSED_IN_SEGMENT = frozenset("/\\?#*")
_ENCODED = str.maketrans({char: quote(char) for char in "% \x7f"})  # what `parse_uri` needs so


class UriRefusedError(ValueError):
    """A URI that is not allowed; the message says why."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Uri:
    """A URI taken apart. ``segments`` are decoded; ``authority``: bucket, or host and port."""

    scheme: str
    authority: str
    segments: tuple[str, ...]

    @property
    def text(self) -> str:
        """For fsspec, which decodes nothing; `parse_uri` may read it otherwise, or not at all."""
        return f"{self.scheme}://{self.authority}/{'/'.join(self.segments)}"

    @property
    def canonical(self) -> str:
        """The one form in which it is stored: `parse_uri` makes the same URI of it."""
        return self.text.translate(_ENCODED)

    @property
    def url(self) -> str:
        """For HTTP: encoded."""
        path = "/".join(quote(segment, safe="") for segment in self.segments)
        return f"{self.scheme}://{self.authority}/{path}"

    @property
    def name(self) -> str:
        """The last segment; empty when there is none."""
        return self.segments[-1] if self.segments else ""

    @property
    def folder(self) -> Uri:
        """What the last segment is in."""
        return Uri(scheme=self.scheme, authority=self.authority, segments=self.segments[:-1])

    def child(self, name: str) -> Uri:
        """An object in this folder."""
        return Uri(scheme=self.scheme, authority=self.authority, segments=(*self.segments, name))

    def is_within(self, prefix: Uri) -> bool:
        """Whether the prefix's segments begin this URI's."""
        return (self.scheme, self.authority) == (prefix.scheme, prefix.authority) and self.segments[
            : len(prefix.segments)
        ] == prefix.segments


def parse_uri(text: str) -> Uri:
    """A URI, checked for everything by which a reader could be led elsewhere.

    Raises:
        UriRefusedError: it has another scheme, user info, a query, ``::``, or a segment such as
            ``..``, encoded or not.
    """
    if "::" in text or any(ord(char) < 0x21 or ord(char) == 0x7F for char in text):
        raise UriRefusedError("must have no spaces, control characters or ::")
    try:
        parts = urlsplit(text)
    except ValueError as error:
        raise UriRefusedError(f"is no URI: {error}") from None
    if parts.scheme not in SCHEMES:
        raise UriRefusedError(f"must begin with {', '.join(f'{name}://' for name in SCHEMES)}")
    if "?" in text or "#" in text:
        raise UriRefusedError("must have no query and no fragment")
    if (parts.scheme == "file") != (not parts.netloc):
        raise UriRefusedError(
            "file URIs name no host, others name one: file:///PATH, s3://BUCKET/PATH"
        )
    if parts.netloc and _AUTHORITY.fullmatch(parts.netloc) is None:
        raise UriRefusedError("must have no user info, and a plain host or bucket")
    if not _has_usable_port(parts):
        raise UriRefusedError("must have a port of 1 to 65535, or none")
    path = parts.path.removeprefix("/").removesuffix("/")
    segments = tuple(_segment(part) for part in path.split("/")) if path else ()
    authority = parts.netloc if parts.scheme == "s3" else parts.netloc.lower()
    return Uri(scheme=parts.scheme, authority=authority, segments=segments)


def _has_usable_port(parts: SplitResult) -> bool:
    try:
        return parts.port != 0
    except ValueError:
        return False


def _segment(encoded: str) -> str:
    try:
        decoded = unquote(encoded, errors="strict")
    except UnicodeDecodeError:
        raise UriRefusedError("must be UTF-8 where it is %-encoded") from None
    if decoded in {"", ".", ".."} or unquote(decoded) in {".", ".."}:
        raise UriRefusedError("must have no empty segment, no . and no ..")
    if "::" in decoded or any(char in _REFUSED_IN_SEGMENT or ord(char) < 0x20 for char in decoded):
        raise UriRefusedError(
            "must have none of / \\ ? # * :: and no control character in a segment"
        )
    return decoded


def as_encoded(stored: str, *, encoded: bool) -> str:
    """A URI out of the database in its canonical form; earlier releases stored it decoded."""
    return stored if encoded else stored.translate(_ENCODED)


def check_within(uri: Uri, prefixes: Iterable[Uri]) -> Uri:
    """The prefix that allows the URI.

    Raises:
        UriRefusedError: there is none.
    """
    for prefix in prefixes:
        if uri.is_within(prefix):
            return prefix
    raise UriRefusedError("is not within a prefix that the administrator gave to this tenant")
