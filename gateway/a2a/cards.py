"""The agent cards that the gateway serves: public ones, and extended ones for an authenticated caller.

The settings decide what a card states about this gateway: security schemes, bindings, extensions. A public card has
the headers that a cache needs (A2A 1.0 section 8).

An extended card is an agent's card as one authenticated caller may see it (A2A 1.0 section 3.1.11). The gateway
fetches it with its own credentials, never with the caller's, and caches it per agent. For an agent without such a card,
or one that is away, it serves the public card: what the gateway announces must work on every binding.
"""

from __future__ import annotations

import asyncio
from contextvars import Context
from dataclasses import dataclass, field, replace
from email.utils import formatdate, parsedate_to_datetime
from http import HTTPStatus
from typing import TYPE_CHECKING, Final, Protocol
from urllib.parse import urlsplit

import orjson
import structlog

from passerelle.a2a_mapping.card_payload import render_payload
from passerelle.a2a_mapping.cards import (
    EVERY_BINDING,
    AgentAddress,
    CardShape,
    PublicEdge,
    choose_shape,
    hash_bytes,
    rewrite_card,
    shape_card,
)
from passerelle.a2a_mapping.errors import ROWS, ErrorKind, ExtendedCardNotConfigured
from passerelle.a2a_mapping.extensions import ACCEPTANCE, PERMISSION, RESUME
from passerelle.a2a_mapping.members import object_at
from passerelle.a2a_mapping.socket_frames import BINDING as SOCKET_BINDING
from passerelle.a2a_mapping.v0_3.cards import lift_card
from passerelle.core.agent_name import ROUTER, find_tenant
from passerelle.core.errors import InvalidInput, RemoteError
from passerelle.core.frozen import frozen
from passerelle.core.peer import Answered, RefusedByPeer
from passerelle.core.principal import AccessScope
from passerelle.gateway.a2a.own_card import add_profile, merge_cards
from passerelle.gateway.a2a.paths import AGENTS
from passerelle.gateway.a2a.reply import HttpReply
from passerelle.gateway.auth.credentials import API_KEY_HEADER

if TYPE_CHECKING:
    from collections.abc import Mapping

    from passerelle.core.peer import Peer, PeerCard, PeerOutcome
    from passerelle.core.ports.chance import Clock
    from passerelle.core.principal import Principal
    from passerelle.core.wire.json import Json, JsonObject
    from passerelle.gateway.a2a.operations import OperationCall
    from passerelle.gateway.settings.model import Settings
    from passerelle.runtime.common.signatures import Signer

EXTENSIONS: Final[tuple[JsonObject, ...]] = (
    {
        "uri": PERMISSION,
        "description": "The approval request of a waiting task, and the typed answer to it.",
        "required": False,
    },
    {
        "uri": RESUME,
        "description": "A cursor on every event, and a defined response to a reader that resumes from one.",
        "required": False,
        "params": {"cursor": "sse-id"},
    },
    {
        "uri": ACCEPTANCE,
        "description": "Conditions that a task must meet before it counts as completed.",
        "required": False,
    },
)
_KEYS: Final[Mapping[str, JsonObject]] = {
    "bearer": {"httpAuthSecurityScheme": {"scheme": "bearer"}},
    "apiKey": {"apiKeySecurityScheme": {"location": "header", "name": API_KEY_HEADER}},
}
_BINDINGS: Final = {"WEBSOCKET": SOCKET_BINDING}
"""Settings names of bindings that differ from their names on cards."""
_OPENID: Final = "/.well-known/openid-configuration"
KEY_EDGE: Final = PublicEdge(_KEYS, (AccessScope.CALL.value,), EXTENSIONS)
"""Callers send an API key, in either way."""
OPEN_EDGE: Final = PublicEdge(extensions=EXTENSIONS)
"""No authentication."""


def make_edge(settings: Settings) -> PublicEdge:
    """The public edge of a gateway with these settings."""
    edge = OPEN_EDGE if settings.auth == "open" else replace(KEY_EDGE, schemes=_list(settings))
    return replace(
        edge,
        links=settings.card_links == "keep",
        grpc=_find_grpc(settings),
        grpc_default=settings.grpc.default_agent or ROUTER,
        sockets=True,
        listed=_read_listed(settings),
    )


def _read_listed(settings: Settings) -> frozenset[str] | None:
    named = settings.card.interfaces
    return None if named is None else frozenset(_BINDINGS.get(name, name) for name in named)


def _list(settings: Settings) -> dict[str, JsonObject]:
    """Every security scheme: keys, the tokens of each issuer, and client certificates checked by the proxy."""
    schemes = {**_KEYS}
    for issuer in settings.issuers:
        where = f"{issuer.issuer.rstrip('/')}{_OPENID}"
        schemes[f"oidc-{issuer.name}"] = {
            "openIdConnectSecurityScheme": {"openIdConnectUrl": where}
        }
    if settings.proxy is not None:
        about = "A client certificate, checked by the proxy."
        schemes["mtls"] = {"mtlsSecurityScheme": {"description": about}}
    return schemes


def _find_grpc(settings: Settings) -> str | None:
    """The gRPC address, ``host:port`` as dialers expect it; None without gRPC."""
    port = settings.grpc.port
    if port is None:
        return None
    if settings.grpc.address or not port:
        # With port 0 the real port is not known yet.
        return settings.grpc.address
    host = urlsplit(settings.public_url).hostname if settings.public_url else settings.host
    return f"[{host}]:{port}" if host and ":" in host else f"{host}:{port}"


CACHE_CONTROL: Final = "public, max-age=300, stale-while-revalidate=60"


@frozen
class CardOptions:
    """What cards state about the gateway, the shape for readers that name no version, and the signer."""

    edge: PublicEdge = KEY_EDGE
    shape: CardShape = "merged"
    signer: Signer | None = None

    def compose(
        self, card: JsonObject, place: AgentAddress, *, shows_all: bool = False
    ) -> JsonObject:
        """A peer's card as served here, in the form of 1.0, signed if signing is on; ``shows_all``: all interfaces."""
        edge = replace(self.edge, listed=EVERY_BINDING) if shows_all else self.edge
        return sign_card(rewrite_card(card, place, edge), self.signer)


def make_card_options(
    settings: Settings, signer: Signer | None, *, push: bool = False
) -> CardOptions:
    """The card options of the settings; only a card of one version can be signed for strict readers."""
    signs = signer if settings.signing.signs_cards else None
    return CardOptions(
        replace(make_edge(settings), push=push),
        settings.card_shape or ("v1" if signs else "merged"),
        signs,
    )


@frozen
class _RenderedCard:
    """The last card rendered for an agent; ``since_s``: when this version of the peer's card was first seen."""

    sha256: str
    base_url: str
    since_s: int
    replies: Mapping[CardShape, HttpReply]


class ServedCards:
    """Renders cards, and caches the last one of each agent."""

    def __init__(self, options: CardOptions, clock: Clock) -> None:
        self._options = options
        self._clock = clock
        self._kept: dict[tuple[str, bool], _RenderedCard] = {}

    def render(
        self, peer: PeerCard, place: AgentAddress, version: str | None, *, shows_all: bool = False
    ) -> HttpReply:
        """The whole response for a card; ``version`` is the reader's ``A2A-Version``.

        ``shows_all``: the reader activated the extension that lists every interface.
        """
        key = (place.agent, shows_all)
        kept = self._kept.get(key)
        if kept is None or (kept.sha256, kept.base_url) != (peer.sha256, place.base_url):
            # The Host header of a request changes the bytes, but not the time of the change.
            same = kept is not None and kept.sha256 == peer.sha256
            since_s = kept.since_s if kept is not None and same else self._clock.now_ms() // 1000
            kept = self._kept[key] = self._make(peer, place, since_s, shows_all=shows_all)
        return kept.replies[choose_shape(version, self._options.shape)]

    def _make(
        self, peer: PeerCard, place: AgentAddress, since_s: int, *, shows_all: bool
    ) -> _RenderedCard:
        card = self._options.compose(peer.card, place, shows_all=shows_all)
        shapes: tuple[CardShape, ...] = ("v1", "v0.3", "merged")
        replies: dict[CardShape, HttpReply] = {
            shape: _answer(shape_card(card, shape), since_s) for shape in shapes
        }
        return _RenderedCard(peer.sha256, place.base_url, since_s, replies)


def sign_card(card: JsonObject, signer: Signer | None) -> JsonObject:
    """A 1.0 card with one signature per signing key (A2A 1.0 section 8.4)."""
    if signer is None:
        return card
    try:
        payload = render_payload(card)
    except InvalidInput as error:
        # The peer's card has no canonical form. Serve it unsigned rather than not at all.
        name = str(card.get("name"))
        structlog.get_logger().warning("card.unsigned", agent=name, reason=error.reason)
        return card
    signatures: list[Json] = [
        {"protected": made.protected, "signature": made.signature} for made in signer.sign(payload)
    ]
    return {**card, "signatures": signatures}


def shorten(reply: HttpReply, request: Mapping[str, str]) -> HttpReply:
    """``reply``, or 304 if the caller has the same card: by ETag, else by time (RFC 9110 section 13.2.2)."""
    asked = request.get("if-none-match")
    if asked is not None:
        tags = {tag.strip().removeprefix("W/") for tag in asked.split(",")}
        same = reply.headers["etag"] in tags or "*" in tags
    else:
        same = _is_unchanged(reply.headers["last-modified"], request.get("if-modified-since"))
    if not same:
        return reply
    return replace(reply, status=HTTPStatus.NOT_MODIFIED, body=b"", media_type=None)


def _answer(card: JsonObject, since_s: int) -> HttpReply:
    body = orjson.dumps(card)
    headers = {
        "etag": f'"{hash_bytes(body)[:32]}"',
        "last-modified": formatdate(since_s, usegmt=True),
        "cache-control": CACHE_CONTROL,
        "vary": "A2A-Version, A2A-Extensions",
    }
    return HttpReply(HTTPStatus.OK, body, headers=headers)


def _is_unchanged(modified: str, since: str | None) -> bool:
    if since is None:
        return False
    try:
        return parsedate_to_datetime(modified) <= parsedate_to_datetime(since)
    except (ValueError, TypeError):
        # An unreadable time counts as none; one without a zone cannot be compared.
        return False


PRIVATE: Final = {"cache-control": "private, max-age=60", "vary": "Authorization, A2A-Version"}
"""Headers of an extended card: no shared cache may store it."""
_FRESH_MS: Final = 600_000
_RETRY_MS: Final = 10_000
_MERGE_S: Final = 3.0
"""How long one agent may delay the combined card."""
_NOT_CONFIGURED: Final = ROWS[ErrorKind.EXTENDED_AGENT_CARD_NOT_CONFIGURED].jsonrpc


class ExtendedPeers(Protocol):
    """The agents and their extended cards; ``PeerRegistry`` is one."""

    @property
    def names(self) -> tuple[str, ...]:
        """In the order of the configuration."""
        ...

    def find(self, name: str) -> Peer:
        """Raises NotFound for a name that is not configured."""
        ...

    def card_url(self, name: str) -> str:
        """Where the agent's card is read."""
        ...

    async def read_extended_card(self, name: str) -> PeerOutcome:
        """GetExtendedAgentCard with the gateway's credentials; the card may be of 0.3."""
        ...


@dataclass(slots=True)
class _KeptExtendedCard:
    """The last answer of an agent. ``card`` None: it has no extended card, or has not answered yet."""

    sha256: str = ""
    card: JsonObject | None = None
    configured: bool = True
    until_ms: int = 0
    asking: asyncio.Lock = field(default_factory=asyncio.Lock)


class PeerExtendedCards:
    """Renders extended cards. Implements ``gateway.a2a.push.ExtendedCards``."""

    def __init__(
        self,
        peers: ExtendedPeers,
        options: CardOptions,
        clock: Clock,
        *,
        public_url: str | None,
        local_url: str,
    ) -> None:
        """``public_url`` is the URL of callers; without it the request's own URL is used, then ``local_url``."""
        self._peers = peers
        self._options = replace(options, edge=replace(options.edge, extended=True))
        self._public_url = public_url
        self._local_url = local_url
        self._clock = clock
        self._kept: dict[str, _KeptExtendedCard] = {}

    async def render(self, call: OperationCall) -> JsonObject:
        """Renders the card in the form of the caller's version.

        Raises:
            ExtendedCardNotConfigured: the agent announces one and has none.
            PeerUnavailable: the agent's card has never been read.
        """
        is_own = call.agent == ROUTER
        card = await (self._merge(call.principal) if is_own else self._read(call.agent))
        if not call.principal.may_call(call.agent):
            # A caller that may only read tasks gets no skills, since it could not use them.
            card = {**card, "skills": []}
        reached = self._public_url or call.own_url or self._local_url
        card_url = "" if is_own else self._peers.card_url(call.agent)
        place = AgentAddress(call.agent, card_url, f"{reached}{AGENTS}/{call.agent}")
        shape: CardShape = "v0.3" if call.version == "0.3" else "v1"
        options = self._options
        if is_own:
            options = replace(options, edge=add_profile(options.edge))
        return shape_card(options.compose(card, place), shape)

    async def _merge(self, principal: Principal) -> JsonObject:
        """The gateway's own card with the skills of the caller's agents; skips an agent that is away."""
        names = [
            name
            for name in self._peers.names
            if principal.may_call(name) and find_tenant(name) is None
        ]
        cards = await asyncio.gather(*(self._find(name) for name in names))
        return merge_cards(card for card in cards if card is not None)

    async def _find(self, agent: str) -> JsonObject | None:
        """The card of an agent as served here, without anything that leads to the agent itself."""
        try:
            async with asyncio.timeout(_MERGE_S):
                card = await self._read(agent)
        except (RemoteError, ExtendedCardNotConfigured, TimeoutError):
            return None
        base_url = f"{self._public_url or self._local_url}{AGENTS}/{agent}"
        place = AgentAddress(agent, self._peers.card_url(agent), base_url)
        return rewrite_card(card, place, self._options.edge)

    async def _read(self, agent: str) -> JsonObject:
        public = await self._peers.find(agent).describe()
        if not object_at(lift_card(public.card), "capabilities").get("extendedAgentCard"):
            return public.card
        kept = self._kept.setdefault(agent, _KeptExtendedCard())
        async with kept.asking:
            if kept.sha256 != public.sha256 or self._clock.now_ms() >= kept.until_ms:
                await self._ask(agent, kept, public.sha256)
        if not kept.configured:
            raise ExtendedCardNotConfigured(f"agent {agent!r} has no extended card")
        return kept.card or public.card

    async def _ask(self, agent: str, kept: _KeptExtendedCard, sha256: str) -> None:
        # In a context of its own: one caller's token must not fetch what is cached for all callers.
        loop = asyncio.get_running_loop()
        outcome = await loop.create_task(self._peers.read_extended_card(agent), context=Context())
        fresh_ms = _FRESH_MS
        match outcome:
            case Answered(result):
                kept.card, kept.configured = result, True
            case RefusedByPeer(code=code) if code == _NOT_CONFIGURED:
                kept.card, kept.configured = None, False
            case _:
                fresh_ms = _RETRY_MS
                if kept.sha256 != sha256:
                    kept.card, kept.configured = None, True
                reason = getattr(outcome, "reason", getattr(outcome, "message", ""))
                structlog.get_logger().warning("card.extended", agent=agent, reason=reason)
        kept.sha256, kept.until_ms = sha256, self._clock.now_ms() + fresh_ms
