"""One HTTP request of a command, and its whole answer. Proxies of the environment are not asked: a token travels along.

On the client of the standard library: it is loaded in a third of the time of one with pools, HTTP/2 and redirects,
none of which a command that asks once has a use for. Nothing is asked to be compressed, no redirect is followed.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import TYPE_CHECKING, Final, cast
from urllib.parse import quote, urlencode, urlsplit

if TYPE_CHECKING:
    import ssl
    from collections.abc import Mapping

    from passerelle.core.wire.json import Json, JsonObject

_SAFE: Final = "/%:@!$&'()*+,;=~?"
"""What stays as it is in a path that may have escapes already."""


class NoAnswer(Exception):
    """Nothing answered; ``is_late`` where somebody was there and has said nothing for too long."""

    def __init__(self, reason: str, *, is_late: bool = False) -> None:
        super().__init__(reason)
        self.reason = reason
        self.is_late = is_late


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    """The answer of ``host``, read to its end."""

    host: str
    status: int
    content: bytes

    @property
    def is_success(self) -> bool:
        """Whether it did what was asked."""
        return self.status // 100 == 2  # noqa: PLR2004  2xx, RFC 9110 section 15.3

    def read_object(self) -> JsonObject | None:
        """The JSON object that it is; None where it is none."""
        try:
            found: object = json.loads(self.content)
        except ValueError:
            return None
        return cast("JsonObject", found) if isinstance(found, dict) else None


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
        NoAnswer: nothing answers there, or not in time, or it is no address.
    """
    query = urlencode(_list_params(params or {}), quote_via=quote)
    sent = {"Accept": "*/*", "User-Agent": "passerelle", **headers}
    content = None
    if body is not None:
        content = json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode()
        sent["Content-Type"] = "application/json"
    try:
        parts = urlsplit(url)
        target = quote(parts.path or "/", safe=_SAFE) + (f"?{query}" if query else "")
        connection = _open(parts.scheme, parts.hostname, parts.port, timeout_s, tls)
        try:
            connection.request(method, target, content, sent)
            answer = _await_answer(connection)
        finally:
            connection.close()
    except (OSError, HTTPException, ValueError) as error:
        raise NoAnswer(_name_reason(error)) from None
    return answer


def _open(
    scheme: str, host: str | None, port: int | None, timeout_s: float, tls: ssl.SSLContext | None
) -> HTTPConnection:
    if not host:
        raise ValueError("the address has no host")
    match scheme:
        case "http":
            return HTTPConnection(host, port, timeout=timeout_s)
        case "https":
            return HTTPSConnection(host, port, timeout=timeout_s, context=tls or _trust_system())
        case _:
            raise ValueError("the address should begin with https:// or http://")


def _trust_system() -> ssl.SSLContext:
    """What the system trusts, as the channel of the same command does."""
    import ssl  # noqa: PLC0415  a gateway of this machine is mostly asked in plain text

    return ssl.create_default_context()


def _await_answer(connection: HTTPConnection) -> HttpAnswer:
    try:
        with connection.getresponse() as answer:
            return HttpAnswer(connection.host, answer.status, answer.read())
    except TimeoutError:
        raise NoAnswer("timed out", is_late=True) from None


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
    if isinstance(error, UnicodeError) or "header" in str(error):
        # Its text has the value, which may be a token.
        return "the token has characters that no header can carry"
    return str(error) or type(error).__name__
