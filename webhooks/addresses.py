"""Which URLs webhooks may have: checked when a webhook is set, and again at each connect (SSRF).

Without an allow-list every public https address passes. With one, only the origins on it pass. An entry with a full
host name means that the operator trusts this host: http and private addresses pass as well. A pattern grants no such
trust, since anyone who can create a name in the domain decides where it points. Pure.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from yarl import URL

from passerelle.core.errors import InvalidInput
from passerelle.core.frozen import frozen
from passerelle.runtime.common.address_screen import AddressScreen

if TYPE_CHECKING:
    from collections.abc import Iterable

_ALLOWED: Final = re.compile(r"(https?)://(\[[^\]]*\]|[^:]*)(?::(\d+|\*))?")
_DEFAULT_PORTS: Final = {"http": 80, "https": 443}
_NUMBER: Final = re.compile(r"[0-9]+|0[xX][0-9A-Fa-f]*", re.ASCII)
_WRITTEN: Final = re.compile(r"[\x21-\x7e]+", re.ASCII)


@frozen
class Address:
    """A URL that may be called. ``trusted``: its address is not screened, because the operator configured it."""

    url: URL
    trusted: bool

    @property
    def origin(self) -> str:
        """Scheme, host and port: the key of the circuit breaker."""
        return str(self.url.origin())


@frozen
class Allowed:
    """One origin of the allow-list. ``host`` begins with ``*`` for a pattern; ``port`` None matches any port."""

    scheme: str
    host: str
    port: int | None

    def matches(self, url: URL) -> bool:
        """Whether a URL is below this origin."""
        if url.scheme != self.scheme or (self.port is not None and url.port != self.port):
            return False
        host = (url.host or "").lower()
        if self.host.startswith("*."):
            return host.endswith(self.host[1:])
        return self.host in {"*", host}

    @property
    def is_exact(self) -> bool:
        """Whether it names one host."""
        return not self.host.startswith("*")


class WebhookRules:
    """Checks URLs against an allow-list."""

    __slots__ = ("_allowed", "_screen")

    def __init__(self, allow: Iterable[str], screen: AddressScreen | None = None) -> None:
        self._allowed = tuple(map(_read_allowed, allow))
        self._screen = screen or AddressScreen()

    def reload(self, allow: Iterable[str]) -> None:
        """Replaces the allow-list, from the next connection on."""
        self._allowed = tuple(map(_read_allowed, allow))

    def judge(self, text: str, field: str = "url") -> Address:
        """Returns the address of a webhook URL.

        Raises:
            InvalidInput: the URL may not be called; names ``field`` and the reason.
        """
        url = _read_url(text, field)
        matching = [one for one in self._allowed if one.matches(url)]
        if any(one.is_exact for one in matching):
            return Address(url, trusted=True)
        if self._allowed and not matching:
            raise InvalidInput(field, "its origin is not on the allow-list")
        if url.scheme != "https" and not matching:
            raise InvalidInput(field, "must be https")
        host = url.host or ""
        if host.rstrip(".").lower() == "localhost" or host.lower().endswith(".localhost"):
            raise InvalidInput(field, "loopback addresses are not allowed")
        if _is_numeric(host):
            kind = self._screen.judge(host)
            if kind is not None:
                raise InvalidInput(field, f"{kind} addresses are not allowed")
        return Address(url, trusted=False)


def _read_url(text: str, field: str) -> URL:
    if not _WRITTEN.fullmatch(text):
        raise InvalidInput(field, "must be a URL in visible ASCII")
    try:
        url = URL(text)
    except ValueError:
        url = URL()
    if url.scheme not in _DEFAULT_PORTS or not url.host or url.port is None:
        raise InvalidInput(field, "must be an absolute http or https URL")
    if url.user is not None or url.password is not None:
        raise InvalidInput(field, "holds no credentials: use authentication instead")
    return url.with_fragment(None)


def _is_numeric(host: str) -> bool:
    """Whether a host is an IP address and not a name, in any notation that resolvers accept as an address."""
    last = host.rstrip(".").rpartition(".")[2]
    return ":" in host or _NUMBER.fullmatch(last) is not None


def _read_allowed(text: str) -> Allowed:
    match = _ALLOWED.fullmatch(text)
    if match is None:
        message = f"no origin: {text}"
        raise ValueError(message)
    scheme, host, port = match[1], match[2].strip("[]").lower(), match[3]
    if port == "*":
        return Allowed(scheme, host, None)
    return Allowed(scheme, host, int(port) if port else _DEFAULT_PORTS[scheme])
