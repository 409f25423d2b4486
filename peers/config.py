"""The configuration of one peer, checked once and frozen."""

from __future__ import annotations

from dataclasses import field
from typing import TYPE_CHECKING, Final

from yarl import URL

from passerelle.core.errors import ConfigInvalid
from passerelle.core.frozen import frozen
from passerelle.peers.credential import Auth, is_writable
from passerelle.peers.interface import PREFERENCE, Choice, Security
from passerelle.peers.origin import origin_of
from passerelle.peers.signatures import CardTrust
from passerelle.runtime.limits.limit import Bounds

if TYPE_CHECKING:
    from collections.abc import Iterator

UNLIMITED: Final = Bounds()
WELL_KNOWN_CARD: Final = "/.well-known/agent-card.json"


@frozen
class Tls:
    """PEM files: authorities in place of the system's, the client certificate and its key."""

    ca: str | None = None
    cert: str | None = None
    key: str | None = None


@frozen
class PeerConfig:
    """One peer. ``url`` + ``card_path`` is where its card is.

    An interface of the card is used only if its origin is the card's or one of ``allowed_origins`` (such as
    ``https://agents.example.com``). ``grpc`` sets how a gRPC address without a scheme is dialled, on any port of the
    card's host. ``interfaces`` are the kinds that may be used, the preferred one first. ``bounds`` limit what is
    sent, cluster-wide. ``query_timeout_s`` limits GetTask, ListTasks, CancelTask and the card; ``total_timeout_s`` a
    send and a whole stream; ``idle_timeout_s`` the time between two reads of a started stream.

    Raises:
        ConfigInvalid: an invalid value; ``where`` is ``agents.<name>.<key>``.
    """

    name: str
    url: str = ""
    """Empty for an agent that dials in."""
    card_path: str = WELL_KNOWN_CARD
    auth: Auth | None = None
    forward_auth: bool = False
    tls: Tls | None = None
    trust: CardTrust = field(default_factory=CardTrust)
    allowed_origins: frozenset[str] = frozenset()
    grpc: Security | None = None
    interfaces: tuple[Choice, ...] = PREFERENCE
    bounds: Bounds = UNLIMITED
    connect_timeout_s: float = 5.0
    query_timeout_s: float = 30.0
    idle_timeout_s: float = 120.0
    total_timeout_s: float = 1800.0
    pool: bool = False
    """Whether several agents may dial in under the name at once."""

    def __post_init__(self) -> None:
        for key, reason in self._find_faults():
            raise ConfigInvalid(f"agents.{self.name}.{key}", reason)

    @property
    def dials_in(self) -> bool:
        """Whether the agent connects to the gateway, over a channel."""
        return not self.url

    def _find_faults(self) -> Iterator[tuple[str, str]]:
        if not self.dials_in:
            yield from self._find_url_faults()
        if not self.card_path.startswith("/"):
            yield "card_path", "must begin with a slash"
        if self.auth is not None and not is_writable(self.auth):
            yield "auth", "the secret is empty or has characters that a header cannot carry"
        for origin in self.allowed_origins:
            if origin_of(origin) is None:
                yield "allowed_origins", f"{origin!r} is not an http or https origin"
        if not self.interfaces:
            yield "interfaces", "must name one kind at least"
        for key in ("connect", "query", "idle", "total"):
            if not getattr(self, f"{key}_timeout_s") > 0:
                yield f"{key}_timeout_s", "must be above zero"

    def _find_url_faults(self) -> Iterator[tuple[str, str]]:
        if origin_of(self.url) is None:
            yield "url", "must be an absolute http or https URL without user and password"
        elif URL(self.url).raw_query_string or URL(self.url).raw_fragment:
            yield "url", "must not have a query or a fragment"

    @property
    def card_url(self) -> str:
        """The URL of the card; for an agent that dials in, a name for the card it sent."""
        if self.dials_in:
            return f"channel:{self.name}"
        return self.url.rstrip("/") + self.card_path

    @property
    def origins(self) -> frozenset[str]:
        """The origins that calls may go to."""
        mine = (origin_of(url) for url in (self.url, *self.allowed_origins))
        return frozenset(origin for origin in mine if origin is not None)
