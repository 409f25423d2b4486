"""Sends one HTTP request and reads the whole response. Ignores proxies of the environment: requests carry a token.

Uses ``httpcore``, which loads in half the time of ``httpx``. Requests no compression and follows no redirect.
"""

from __future__ import annotations

import json
import ssl
from typing import TYPE_CHECKING, Final, cast
from urllib.parse import SplitResult, quote, urlencode, urlsplit

import httpcore

from passerelle.core.frozen import frozen
from passerelle.core.wire.display import escape_line, explain_error

if TYPE_CHECKING:
    from collections.abc import Mapping

    from passerelle.core.wire.json import Json, JsonObject

_SAFE: Final = "/%:@!$&'()*+,;=~"
"""Characters that stay unescaped in a path, which may contain escapes already."""
_LATIN: Final = 0x100
"""A header has one-byte characters only (RFC 9110, section 5.5)."""
_WAITS: Final = ("connect", "read", "write", "pool")


class NoAnswer(Exception):
    """No response. ``is_late``: the connection was made, but the response did not arrive in time."""

    def __init__(self, reason: str, *, is_late: bool = False) -> None:
        super().__init__(reason)
        self.reason = reason
        self.is_late = is_late


class UnsendableRequest(NoAnswer):
    """The request was not sent. ``field`` is ``url`` or a header; its value is omitted, as it may be a token."""

    def __init__(self, field: str, reason: str) -> None:
        super().__init__(reason)
        self.field = field


@frozen
class HttpAnswer:
    """The complete response of ``host``."""

    host: str
    status: int
    content: bytes
    location: str | None = None
    """Target of a redirect."""

    @property
    def is_success(self) -> bool:
        """Returns whether the status is 2xx."""
        return self.status // 100 == 2  # noqa: PLR2004  2xx, RFC 9110 section 15.3

    def read_object(self) -> JsonObject | None:
        """Returns the body as a JSON object; None if it is none."""
        try:
            found: object = json.loads(self.content)
        except (ValueError, RecursionError):
            return None
        return cast("JsonObject", found) if isinstance(found, dict) else None

    def describe_unexpected(self) -> str:
        """Describes a response that no gateway sends, such as that of a proxy."""
        at = f", redirect to {escape_line(self.location)}" if self.location else ""
        return f"is no gateway: it responded with HTTP {self.status}{at}"


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
    """Sends a request. ``timeout_s`` limits the connect, and each wait for data after it.

    Raises:
        NoAnswer: no connection, no response in time, or the request is invalid (UnsendableRequest).
        UnicodeEncodeError: the path, a parameter or the body cannot be encoded as UTF-8.
    """
    query = urlencode(_list_params(params or {}), quote_via=quote)
    sent = {"Accept": "*/*", "User-Agent": "passerelle", **headers}
    content = None
    if body is not None:
        content = json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode()
        sent["Content-Type"] = "application/json"
    for name, value in sent.items():
        if not value.isprintable() or any(ord(letter) >= _LATIN for letter in value):
            raise UnsendableRequest(name, "has characters that are not allowed in a header")
    parts = split_address(url)
    target = quote(parts.path or "/", safe=_SAFE) + (f"?{query}" if query else "")
    address = _find_origin(parts, target)
    try:
        with httpcore.ConnectionPool(ssl_context=_choose_trust(parts, tls)) as pool:
            answer = pool.request(
                method,
                address,
                headers=[(name, value.encode("latin-1")) for name, value in sent.items()],
                content=content,
                extensions={"timeout": dict.fromkeys(_WAITS, timeout_s)},
            )
    except httpcore.ReadTimeout:
        raise NoAnswer("timed out", is_late=True) from None
    except (httpcore.TimeoutException, httpcore.NetworkError, httpcore.ProtocolError) as error:
        raise NoAnswer(escape_line(_name_reason(error))) from None
    return HttpAnswer(parts.hostname or "", answer.status, answer.content, _find_redirect(answer))


def split_address(url: str) -> SplitResult:
    """Splits the address of a gateway, or of a path there.

    Raises:
        UnsendableRequest: it is no valid address.
    """
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError as error:
        raise UnsendableRequest("url", str(error)) from None
    if not parts.hostname:
        raise UnsendableRequest("url", "has no host")
    if parts.scheme not in {"http", "https"}:
        raise UnsendableRequest("url", "should begin with https:// or http://")
    if parts.username is not None or parts.query or parts.fragment:
        raise UnsendableRequest(
            "url", "must not have a user, ? or #; pass a token with --token-env"
        )
    return parts


def _find_origin(parts: SplitResult, target: str) -> httpcore.URL:
    """Returns the URL in httpcore's form; raises UnsendableRequest."""
    try:
        host = (parts.hostname or "").encode("idna")
    except UnicodeError:
        raise UnsendableRequest("url", "its host is not a valid name") from None
    return httpcore.URL(scheme=parts.scheme, host=host, port=parts.port, target=target)


def _choose_trust(parts: SplitResult, tls: ssl.SSLContext | None) -> ssl.SSLContext | None:
    """Returns the context if given, else the system's trust, as the channel of the same command uses."""
    return ssl.create_default_context() if tls is None and parts.scheme == "https" else tls


def _find_redirect(answer: httpcore.Response) -> str | None:
    if answer.status // 100 != 3:  # noqa: PLR2004  3xx, RFC 9110 section 15.4
        return None
    return next(
        (value.decode("latin-1") for name, value in answer.headers if name.lower() == b"location"),
        None,
    )


def _list_params(params: Mapping[str, Json]) -> list[tuple[str, str]]:
    """A list is sent as a repeated parameter."""
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
    cause = next((one for one in error.args if isinstance(one, Exception)), error)
    if isinstance(cause, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted: {cause.verify_message} (CERTIFICATE_VERIFY_FAILED)"
    return explain_error(cause) or type(error).__name__
