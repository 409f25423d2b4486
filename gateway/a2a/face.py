"""The A2A face as an ASGI application: turns a request into an operation, and its result into a response.

It runs before the router: its paths are the hot ones and must not redirect (G8). It checks in one order: path, caller,
agent, then what ``calls`` checks. An unknown agent and a forbidden one look the same.
"""

from __future__ import annotations

import asyncio
from dataclasses import field, replace
from typing import TYPE_CHECKING, Any, Final, Protocol

import structlog

from passerelle.a2a_mapping.cards import AgentAddress
from passerelle.a2a_mapping.extensions import INTERFACES
from passerelle.a2a_mapping.version import HEADER, LEGACY
from passerelle.core.agent_name import ROUTER, find_base, is_served
from passerelle.core.errors import (
    Unauthenticated,
    UnknownMethod,
)
from passerelle.core.frozen import frozen
from passerelle.core.wire.trace import read_trace
from passerelle.gateway.a2a.bindings import (
    HttpBinding,
    LegacyHttpBinding,
    RpcBinding,
    choose_media_type,
    refuse_verb,
)
from passerelle.gateway.a2a.calls import CallServer, HttpVisit
from passerelle.gateway.a2a.cards import CardOptions, ServedCards, shorten
from passerelle.gateway.a2a.extensions import read_extensions
from passerelle.gateway.a2a.heads import ParsedHead, find_server_extensions
from passerelle.gateway.a2a.http_request import CallerLeftError, Incoming
from passerelle.gateway.a2a.operations import Operations
from passerelle.gateway.a2a.own_card import add_profile, read_own_card
from passerelle.gateway.a2a.paths import AGENTS, ROOT, Resource, find_route, is_at_root, split_path
from passerelle.gateway.a2a.reply import HttpReply, compose_missing
from passerelle.gateway.a2a.streams import KEEP_ALIVE_S
from passerelle.gateway.a2a.unary import UnaryCalls
from passerelle.gateway.a2a.visits import NO_OPERATION, Visits
from passerelle.gateway.a2a.waits import RECHECK_S, Waits
from passerelle.gateway.auth.credentials import READER, CredentialReader, read_address
from passerelle.gateway.connections import note_authenticated
from passerelle.runtime.limits.gate import StreamSeats
from passerelle.runtime.memory.room import MemoryRoom
from passerelle.runtime.observability.logs import Requests
from passerelle.runtime.observability.spans import end_request

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from opentelemetry.trace import Span
    from starlette.types import Receive, Scope, Send

    from passerelle.core.peer import Peer
    from passerelle.core.ports.chance import Clock, Ids
    from passerelle.core.principal import Principal
    from passerelle.gateway.a2a.bindings import CallBinding
    from passerelle.gateway.a2a.heads import ServerExtensions
    from passerelle.gateway.a2a.operations import TurnService
    from passerelle.gateway.a2a.paths import A2aRoute, PathTarget
    from passerelle.gateway.a2a.push import ExtendedCards, PushOperations
    from passerelle.gateway.auth.authenticator import CachedAuthenticator
    from passerelle.runtime.limits.gate import Gate
    from passerelle.runtime.observability.metrics import Metrics
    from passerelle.runtime.observability.spans import Spans

BODY_LIMIT_BYTES: Final = 1_048_576
_BELOW: Final = f"{AGENTS}/"
_READS: Final = frozenset({"GET", "HEAD"})
_WITHOUT_ID: Final = RpcBinding()


class AgentDirectory(Protocol):
    """The configured agents; ``PeerRegistry`` is one."""

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


@frozen
class FaceSettings:
    """``public_url``: the base URL for callers, without a trailing slash; None uses the request's host."""

    cards: CardOptions = field(default_factory=CardOptions)
    public_url: str | None = None
    body_limit_bytes: int = BODY_LIMIT_BYTES
    keep_alive_s: float = KEEP_ALIVE_S
    recheck_s: float = RECHECK_S
    access_log: bool = False


@frozen
class FaceParts:
    """What the face depends on; push configs and extended cards are optional."""

    service: TurnService
    authenticator: CachedAuthenticator
    agents: AgentDirectory
    metrics: Metrics
    clock: Clock
    ids: Ids
    reader: CredentialReader = READER
    push: PushOperations | None = None
    extended_cards: ExtendedCards | None = None
    gate: Gate | None = None
    spans: Spans | None = None
    awaits_approval: Callable[[str], bool] = lambda _agent: False
    """Whether message streams of an agent stay open through an approval."""
    seats: StreamSeats = field(default_factory=StreamSeats)
    memory: MemoryRoom = field(default_factory=MemoryRoom)


def make_face(parts: FaceParts, settings: FaceSettings | None = None) -> Face:
    """Builds the face over its parts."""
    return Face(parts, settings or FaceSettings())


class Face:
    """An ASGI application for the requests that ``matches`` accepts; other bindings share its ``operations``."""

    def __init__(self, parts: FaceParts, settings: FaceSettings) -> None:
        self.parts: Final = parts
        self._settings = settings
        self._requests = Requests(parts.ids)
        self._visits = Visits(parts.metrics, parts.spans, "a2a")
        self._waits = Waits(settings.recheck_s)
        self.operations: Final = Operations(
            parts.service,
            self._waits,
            parts.push,
            parts.extended_cards,
            parts.gate,
            parts.awaits_approval,
            parts.seats,
        )
        self._calls = CallServer(
            self.operations,
            parts.agents,
            parts.authenticator,
            parts.ids,
            settings.body_limit_bytes,
            parts.memory,
            settings.keep_alive_s,
        )
        edge = replace(
            settings.cards.edge,
            push=parts.push is not None,
            extended=parts.extended_cards is not None,
        )
        self._unary = UnaryCalls(
            self.operations,
            parts.authenticator,
            self._visits,
            self._requests,
            settings.body_limit_bytes,
            self._finish,
        )
        self._cards = ServedCards(replace(settings.cards, edge=edge), parts.clock)
        routed = replace(settings.cards, edge=add_profile(edge))
        self._own_card = ServedCards(routed, parts.clock)

    @staticmethod
    def matches(scope: Scope) -> bool:
        """Whether the request is for an agent."""
        if scope["type"] != "http":
            return False
        path: str = scope["path"]
        if path.startswith(_BELOW) or path == AGENTS:
            return True
        return is_at_root(path) and not (path == ROOT and scope["method"] in _READS)

    async def drain(self) -> None:
        """Ends streams in good order and answers all waiting callers; for a shutdown."""
        await self._waits.drain()

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Coroutine[Any, Any, None]:
        """Serves one request, in the task that awaits this."""
        return self.handle_async(find_server_extensions(scope), scope, receive, send)

    def handle_async(
        self, offer: ServerExtensions | None, scope: Scope, receive: Receive, send: Send
    ) -> Coroutine[Any, Any, None]:
        """The same with the server's extensions. The scope is not read if its head is cached."""
        self._requests.begin()
        parsed = offer.kept.parsed if offer is not None else None
        # A cached head is valid as long as the agents are the same.
        if parsed is None or parsed.names is not self.parts.agents.names:
            parsed = self._read(scope, offer)
        visit = HttpVisit(
            parsed, receive, send, offer, parsed.binding, {}, agent=parsed.agent or ""
        )
        return self._visit(visit) if parsed.is_served else self._answer_unknown(visit)

    def handle_sync(
        self, offer: ServerExtensions, body: bytes, receive: Receive, send: Send
    ) -> bool:
        """Starts a message that needs no wait before it is stored; returns False, without effect, for others."""
        parsed = offer.kept.parsed
        if (
            parsed is None
            or parsed.target is not Resource.ENDPOINT
            or parsed.names is not self.parts.agents.names
            or self.parts.spans
        ):
            return False
        return self._unary.begin(parsed, body, offer, receive, send)

    def _read(self, scope: Scope, offer: ServerExtensions | None) -> ParsedHead:
        """Parses the head."""
        names = self.parts.agents.names
        incoming = Incoming(scope, self.parts.reader.certificate_header)
        # A GET of the root is for the index page.
        is_index = incoming.path == ROOT and incoming.verb in _READS
        agent, rest = (not is_index and split_path(incoming.path, names)) or (None, "")
        route = find_route(rest)
        target = route.verbs.get(incoming.verb)
        binding = _choose_binding(incoming, route, target)
        shown = self.parts.reader.read(incoming.headers, read_address(scope))
        is_here = agent is not None and is_served(agent, names)
        parsed = ParsedHead(
            incoming, names, agent, route, target, binding, shown, is_served=is_here
        )
        if offer is not None:
            offer.kept.parsed = parsed
        return parsed

    async def _visit(self, visit: HttpVisit) -> None:
        """Serves and counts the request, and answers any error before a response has started."""
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        parsed, spans = visit.parsed, self.parts.spans
        route, target = parsed.route, parsed.target
        span = spans.begin_request(parsed.incoming.headers) if spans else None
        with self._waits.present:
            try:
                if target is Resource.CARD:
                    await self._serve_card(visit)
                    return
                authenticator = self.parts.authenticator
                principal = authenticator.authenticate_cached(
                    parsed.shown
                ) or await authenticator.authenticate(parsed.shown)
                note_authenticated()
                visit.caller = principal.id
                if not principal.sees(visit.agent):
                    visit.outcome = "not_found"
                    await visit.answer(self._refuse_agent(visit.agent, principal))
                elif target is Resource.ENDPOINT:
                    asked = self._calls.take_rpc(visit) or await self._calls.read_rpc(visit)
                    await self._calls.perform(visit, asked, principal)
                else:
                    await self._serve_path(visit, route, target, principal)
            except CallerLeftError:
                visit.outcome = "left"
            except Exception as error:  # noqa: BLE001  the top of a request: the caller gets an envelope, the log the rest
                await visit.refuse(self._visits.judge(visit, error))
            finally:
                for drawn in visit.drawn:
                    drawn.close()
                if span is not None:
                    _end(span, visit, route)
                self._finish(visit, loop.time() - began_s)

    def _finish(self, visit: HttpVisit, seconds: float) -> None:
        parent = visit.parsed.incoming.headers.get("traceparent")
        trace = read_trace(parent) if parent else None
        self.parts.metrics.count_request(
            visit.agent,
            visit.operation,
            visit.outcome,
            seconds,
            trace.trace_id if trace else "",
        )
        if self._settings.access_log:
            _log(visit, seconds)

    async def _serve_path(
        self, visit: HttpVisit, route: A2aRoute, target: PathTarget | None, principal: Principal
    ) -> None:
        """Serves HTTP+JSON."""
        incoming = visit.parsed.incoming
        if target is not None:
            asked = await self._calls.read_http(visit, route, target)
            await self._calls.perform(visit, asked, principal)
        elif route.verbs:
            visit.outcome = "method_not_allowed"
            await refuse_verb(incoming, route.verbs).write(visit.send)
        else:
            raise UnknownMethod(f"{incoming.verb} {incoming.path}")

    async def _serve_card(self, visit: HttpVisit) -> None:
        visit.operation = Resource.CARD.value
        incoming, agent = visit.parsed.incoming, visit.agent
        base_url = f"{self._settings.public_url or incoming.own_url}{AGENTS}/{agent}"
        version = incoming.headers.get(HEADER.lower()) or incoming.query.get(HEADER)
        shows_all = INTERFACES in read_extensions(incoming)
        if agent == ROUTER:
            place = AgentAddress(agent, "", base_url)
            card = self._own_card.render(read_own_card(), place, version, shows_all=shows_all)
        else:
            peer = await self.parts.agents.find(agent).describe()
            place = AgentAddress(agent, self.parts.agents.card_url(agent), base_url)
            card = self._cards.render(peer, place, version, shows_all=shows_all)
        reply = shorten(card, incoming.headers)
        await reply.write(visit.send, head_only=incoming.verb == "HEAD")

    async def _answer_unknown(self, visit: HttpVisit) -> None:
        """Answers for an unknown agent; a caller that may use no agent learns no name."""
        with self._waits.present:
            reply = await self._render_unknown(visit)
            await reply.write(visit.send)

    async def _render_unknown(self, visit: HttpVisit) -> HttpReply:
        outcome = "not_found"
        agent = visit.parsed.agent
        try:
            principal = await self.parts.authenticator.authenticate(visit.parsed.shown)
            reply = self._refuse_agent(agent, principal)
        except Unauthenticated as error:
            if agent is None or visit.parsed.target is Resource.CARD:
                reply = self._refuse_agent(agent, None)
            else:
                # As for an existing agent: names cannot be probed without a credential.
                outcome, reply = error.stable_code, visit.binding.render_error(error)
        self.parts.metrics.count_request("", NO_OPERATION, outcome, 0.0)
        return reply

    def _refuse_agent(self, name: str | None, principal: Principal | None) -> HttpReply:
        agents = [one for one in self.parts.agents.names if principal and principal.sees(one)]
        # Name only the agent: whether a tenant exists is not public.
        here = (
            f"there is no agent {find_base(name)[:80]!r}"
            if name and name != ROUTER
            else "there is no agent at this address"
        )
        return compose_missing(f"{here}; agents are served below {AGENTS}", agents)


def _choose_binding(incoming: Incoming, route: A2aRoute, target: PathTarget | None) -> CallBinding:
    if target is Resource.ENDPOINT:
        return _WITHOUT_ID
    if route.version == LEGACY:
        return LegacyHttpBinding()
    return HttpBinding(choose_media_type(incoming))


def _end(span: Span, visit: HttpVisit, route: A2aRoute) -> None:
    incoming = visit.parsed.incoming
    end_request(
        span,
        agent=visit.agent,
        operation=visit.operation,
        outcome=visit.outcome,
        binding="JSONRPC" if isinstance(visit.binding, RpcBinding) else "HTTP+JSON",
        version=incoming.headers.get(HEADER.lower()) or route.version,
    )


def _log(visit: HttpVisit, seconds: float) -> None:
    """Logs one line per request, without anything the caller wrote except the parsed trace id."""
    trace = read_trace(visit.parsed.incoming.headers.get("traceparent"))
    structlog.get_logger().info(
        "a2a.request",
        agent=visit.agent,
        operation=visit.operation,
        outcome=visit.outcome,
        caller=visit.caller,
        trace=trace.trace_id if trace else None,
        ms=round(seconds * 1000, 1),
    )
