"""One HTTP request of a command, and its whole answer. Proxies of the environment are not asked: a token travels along.

On the client of the standard library: it is loaded in a third of the time of one with pools, HTTP/2 and redirects,
none of which a command that asks once has a use for. Nothing is asked to be compressed, no redirect is followed.
"""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass
from http.client import (
    HTTPConnection,
    HTTPException,
    HTTPResponse,
    HTTPSConnection,
    IncompleteRead,
)
from typing import TYPE_CHECKING, Final, cast
from urllib.parse import SplitResult, quote, urlencode, urlsplit

from passerelle.core.wire.display import escape_line

if TYPE_CHECKING:
    import ssl
    from collections.abc import Mapping
    from http.client import HTTPMessage

    from passerelle.core.wire.json import Json, JsonObject

_SAFE: Final = "/%:@!$&'()*+,;=~"
"""What stays as it is in a path that may have escapes already."""
_LATIN: Final = 0x100
"""A header has letters of one byte (RFC 9110, section 5.5)."""


class NoAnswer(Exception):
    """Nothing answered; ``is_late`` where somebody was there and has said nothing for too long."""

    def __init__(self, reason: str, *, is_late: bool = False) -> None:
        super().__init__(reason)
        self.reason = reason
        self.is_late = is_late


class Unasked(NoAnswer):
    """Nothing was asked: ``field`` is ``url``, or a header, whose value may be a token and is not said."""

    def __init__(self, field: str, reason: str) -> None:
        super().__init__(reason)
        self.field = field


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    """The answer of ``host``, read to its end."""

    host: str
    status: int
    content: bytes
    location: str | None = None
    """Where a redirect leads."""

    @property
    def is_success(self) -> bool:
        """Whether it did what was asked."""
        return self.status // 100 == 2  # noqa: PLR2004  2xx, RFC 9110 section 15.3

    def read_object(self) -> JsonObject | None:
        """The JSON object that it is; None where it is none."""
        try:
            found: object = json.loads(self.content)
        except (ValueError, RecursionError):
            return None
        return cast("JsonObject", found) if isinstance(found, dict) else None

    def describe_stranger(self) -> str:
        """Words for an answer that no gateway gives: that of a proxy before it, or of something else altogether."""
        at = f", it sends to {escape_line(self.location)}" if self.location else ""
        return f"does not answer as a gateway does: HTTP {self.status}{at}"


def ask(
    method: str,
    url: str,
    *,
    headers: Mapping[str, str],
    params: Mapping[str, Json] | None = None,
    body: JsonObject | None = None,
    timeout_s: float,
    tls: ssl.SSLContext | None = None,
) -> HttpAnswer:
    """Sends a request; ``timeout_s`` bounds the connection, and each silence after it.

    Raises:
        NoAnswer: nothing answers there, or not in time, or it cannot be asked (Unasked).
        UnicodeEncodeError: the path, a parameter or the body is no UTF-8.
    """
    query = urlencode(_list_params(params or {}), quote_via=quote)
    sent = {"Accept": "*/*", "User-Agent": "passerelle", **headers}
    content = None
    if body is not None:
        content = json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode()
        sent["Content-Type"] = "application/json"
    for name, value in sent.items():
        if not value.isprintable() or any(ord(letter) >= _LATIN for letter in value):
            raise Unasked(name, "has characters that no header can carry")
    parts = split_address(url)
    connection = _open(parts, timeout_s, tls)
    target = quote(parts.path or "/", safe=_SAFE) + (f"?{query}" if query else "")
    try:
        return _exchange(connection, method, target, content, sent)
    except UnicodeError:
        raise Unasked("url", "its host is no name that can be looked up") from None
    except IncompleteRead:
        raise NoAnswer("the connection ended in the middle of an answer (IncompleteRead)") from None
    except (OSError, HTTPException, ValueError) as error:
        raise NoAnswer(escape_line(_name_reason(error))) from None
    finally:
        connection.close()


def split_address(url: str) -> SplitResult:
    """The parts of the address of a gateway, or of something there.

    Raises:
        Unasked: it is none.
    """
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError as error:
        raise Unasked("url", str(error)) from None
    if not parts.hostname:
        raise Unasked("url", "has no host")
    if parts.scheme not in {"http", "https"}:
        raise Unasked("url", "should begin with https:// or http://")
    if parts.username is not None or parts.query or parts.fragment:
        raise Unasked("url", "should have neither a user nor ? nor #; a token goes by --token-env")
    return parts


def _open(parts: SplitResult, timeout_s: float, tls: ssl.SSLContext | None) -> HTTPConnection:
    host, port = parts.hostname or "", parts.port
    if parts.scheme == "http":
        return HTTPConnection(host, port, timeout=timeout_s)
    return HTTPSConnection(host, port, timeout=timeout_s, context=tls or _trust_system())


def _trust_system() -> ssl.SSLContext:
    """What the system trusts, as the channel of the same command does."""
    import ssl  # noqa: PLC0415  a gateway of this machine is mostly asked in plain text

    return ssl.create_default_context()


class _FinalResponse(HTTPResponse):
    """The answer behind what is said on the way to it (1xx: RFC 9110, section 15.2)."""

    def begin(self) -> None:
        super().begin()
        while self.status // 100 == 1:
            # Without headers it reads what comes next.
            self.headers = cast("HTTPMessage", None)
            super().begin()


def _exchange(
    connection: HTTPConnection,
    method: str,
    target: str,
    content: bytes | None,
    sent: dict[str, str],
) -> HttpAnswer:
    connection.response_class = _FinalResponse
    connection.connect()
    with suppress(BrokenPipeError, ConnectionResetError):
        # Whoever wants no more of a body says why before it closes.
        connection.request(method, target, content, sent)
    try:
        with connection.getresponse() as answer:
            content, location = answer.read(), answer.getheader("Location")
    except TimeoutError:
        raise NoAnswer("timed out", is_late=True) from None
    redirect = location if answer.status // 100 == 3 else None  # noqa: PLR2004  3xx, RFC 9110 section 15.4
    return HttpAnswer(connection.host, answer.status, content, redirect)


def _list_params(params: Mapping[str, Json]) -> list[tuple[str, str]]:
    """A parameter that is a list is given once for each item."""
    return [
        (name, _spell(item))
        for name, value in params.items()
        for item in (value if isinstance(value, list) else [value])
    ]


def _spell(value: Json) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return "" if value is None else str(value)


def _name_reason(error: Exception) -> str:
    if getattr(error, "reason", "") == "CERTIFICATE_VERIFY_FAILED":
        said = getattr(error, "verify_message", "")
        return f"its certificate is not trusted: {said} (CERTIFICATE_VERIFY_FAILED)"
    return str(error) or type(error).__name__
