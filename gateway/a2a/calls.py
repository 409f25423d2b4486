"""One call from request to answer: reads the body, checks version and method, rights and parameters.

The order is the same for both bindings: content type, body, version, method, rights, parameters.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol, assert_never

from passerelle.a2a_mapping.errors import InvalidRequest
from passerelle.a2a_mapping.extensions import RESUME
from passerelle.a2a_mapping.inbound import read_query
from passerelle.a2a_mapping.members import read_object
from passerelle.a2a_mapping.resume import read_resume_request, write_resumed
from passerelle.a2a_mapping.rpc import Method, read_rpc
from passerelle.a2a_mapping.version import LEGACY
from passerelle.core.agent_name import find_tenant, name_tenant
from passerelle.core.errors import (
    CallerError,
    Draining,
    InvalidInput,
    PasserelleError,
    TooLarge,
    UnknownMethod,
)
from passerelle.core.frozen import frozen
from passerelle.gateway.a2a.bindings import RpcBinding
from passerelle.gateway.a2a.cards import PRIVATE
from passerelle.gateway.a2a.extensions import activate, read_extensions, write_active
from passerelle.gateway.a2a.frame_forms import choose_form
from passerelle.gateway.a2a.heads import AuthorizedCall
from passerelle.gateway.a2a.http_request import A2A_JSON, JSON, Incoming, watch_disconnect
from passerelle.gateway.a2a.normalized_call import (
    NormalizedCall,
    check_without_id,
    normalize_http,
    normalize_rpc,
)
from passerelle.gateway.a2a.operations import (
    MAY_BE_LONG,
    SCOPES,
    OperationCall,
    Operations,
    Streaming,
)
from passerelle.gateway.a2a.paths import Resource
from passerelle.gateway.a2a.reply import PLACEHOLDER
from passerelle.gateway.a2a.streams import EventStream
from passerelle.gateway.a2a.visits import Visit
from passerelle.gateway.a2a.waits import AdmittedCaller
from passerelle.runtime.common.calls import KEY_HEADER, check_key, require_scope
from passerelle.runtime.common.carried import list_confirmed, set_call_context
from passerelle.runtime.common.secret import Secret
from passerelle.runtime.memory.room import MemoryDraw
from passerelle.runtime.records.long_content import LongTaskError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from starlette.types import Receive, Send

    from passerelle.core.commands import Authenticator
    from passerelle.core.ports.chance import Ids
    from passerelle.core.principal import Principal
    from passerelle.core.wire.json import Json, JsonObject
    from passerelle.gateway.a2a.bindings import CallBinding
    from passerelle.gateway.a2a.heads import ParsedHead, ServerExtensions
    from passerelle.gateway.a2a.http_request import Watch
    from passerelle.gateway.a2a.paths import A2aRoute, PathTarget
    from passerelle.gateway.a2a.reply import HttpReply
    from passerelle.runtime.memory.room import MemoryRoom, MemoryUse
    from passerelle.runtime.records.long_content import LongContent

_RETRY_MS: Final = 750
_RETRY_BITS: Final = 9
_NEED_BODY: Final = frozenset({Method.SEND_MESSAGE, Method.SEND_STREAMING_MESSAGE})
_STREAMS: Final = frozenset({Method.SEND_STREAMING_MESSAGE, Method.SUBSCRIBE_TO_TASK})
_RPC_TYPES: Final = frozenset({JSON})
_HTTP_TYPES: Final = frozenset({JSON, A2A_JSON})
_KEY: Final = KEY_HEADER.lower()
_SNAKE: Final = {"taskId": "task_id"}
TENANT: Final = "tenant"


class AgentNames(Protocol):
    """The agents that are served; ``PeerRegistry`` is one."""

    @property
    def names(self) -> tuple[str, ...]:
        """The names, including those of tenants."""
        ...


@dataclass(slots=True)
class HttpVisit(Visit):
    """One request on its way through the face; ``binding`` and ``operation`` get more precise step by step."""

    parsed: ParsedHead
    receive: Receive
    send: Send
    offer: ServerExtensions | None
    binding: CallBinding
    headers: dict[str, str]
    """Headers of any answer."""
    stream: EventStream | None = None
    caller: str | None = None
    drawn: list[MemoryDraw] = field(default_factory=list["MemoryDraw"])
    """What its body and its answer draw from the memory budget; held until the request is answered."""

    @property
    def is_answering(self) -> bool:
        """Whether a stream has started: then no other answer can be sent."""
        return self.stream is not None and self.stream.started

    @property
    def watch(self) -> Watch:
        """How to learn that the caller has left; use it after the body has been read."""
        return watch_disconnect(self.receive) if self.offer is None else self.offer.watch

    def echo(self, call: OperationCall, asked: NormalizedCall) -> None:
        """Sets the headers with the requested extensions that are active so far, here and at the agent."""
        if call.asked:
            active = call.extensions | list_confirmed()
            self.headers |= write_active(active, legacy=asked.legacy is not None)

    async def refuse(self, error: PasserelleError) -> None:
        """Answers with an error, unless a stream has started."""
        if not self.is_answering:
            await self.answer(self.binding.render_error(error))

    def answer_now(self, reply: HttpReply) -> bool:
        """Sends a whole answer at once; False if that is not possible, and nothing was sent."""
        return self.offer is not None and not self.headers and reply.write_at_once(self.offer)

    async def answer_long(self, content: LongContent) -> None:
        """Sends a result that is not held in memory, as fast as the caller reads it."""
        # The envelope is written around a placeholder byte, which JSON cannot contain.
        frame = self.binding.wrap_event(PLACEHOLDER)
        reply = replace(self.binding.render_result(None), body=frame)
        if self.headers:
            reply = replace(reply, headers={**reply.headers, **self.headers})
        await reply.write_around(self.send, content)

    async def answer(self, reply: HttpReply) -> None:
        """Sends a whole answer."""
        if self.headers:
            reply = replace(reply, headers={**reply.headers, **self.headers})
        # Memory drawn from the budget stays drawn until the caller has taken the answer.
        if self.offer is None or self.drawn or not reply.write_at_once(self.offer):
            await reply.write(self.send)


@frozen
class CallServer:
    """Serves calls over the operations. Raises errors as long as nothing has been sent."""

    operations: Operations
    agents: AgentNames
    authenticator: Authenticator
    ids: Ids
    body_limit_bytes: int
    memory: MemoryRoom
    keep_alive_s: float

    def take_rpc(self, visit: HttpVisit) -> NormalizedCall | None:
        """Reads a JSON-RPC request whose body has arrived; the visit's binding gets its id as soon as it is known."""
        parsed = visit.parsed
        if parsed.admitted is None:  # else a call with this content type was admitted before
            parsed.incoming.require_media_type(_RPC_TYPES, optional=False)
        body = self._take_body(visit)
        return None if body is None else _read_call(visit, body)

    async def read_rpc(self, visit: HttpVisit) -> NormalizedCall:
        """The same after ``take_rpc`` returned None: waits for the body first."""
        body = await self._read_body(visit)
        return _read_call(visit, body)

    async def read_http(
        self, visit: HttpVisit, route: A2aRoute, target: PathTarget
    ) -> NormalizedCall:
        """Reads a request to an HTTP+JSON path."""
        incoming = visit.parsed.incoming
        incoming.require_media_type(_HTTP_TYPES, optional=_needs_no_body(target))
        body = self._take_body(visit)
        if body is None:
            body = await self._read_body(visit)
        version = incoming.version
        name = f"{incoming.verb} {incoming.path}"
        match target:
            case Resource.ENDPOINT | Resource.CARD:
                raise UnknownMethod(name)
            case Method():
                params = _read_params(incoming, body, route.named)
                unsaid = not incoming.names_version
                return normalize_http(version, (route.version, name), target, params, unsaid=unsaid)
            case _:
                assert_never(target)

    async def perform(self, visit: HttpVisit, asked: NormalizedCall, principal: Principal) -> None:
        """Executes the call, and answers."""
        method = asked.method
        visit.operation = method
        if tenant := asked.params.get(TENANT):
            visit.agent = self._find_tenant(visit.agent, tenant)
        call = self._authorize(visit, asked, principal)
        visit.echo(call, asked)
        if method is Method.SEND_STREAMING_MESSAGE or method is Method.SUBSCRIBE_TO_TASK:
            await self._stream(visit, method, asked, call)
            return
        try:
            result = await self.operations.answer(method, call, visit.watch)
        except LongTaskError as found:
            is_framed = visit.parsed.incoming.is_framed
            if found.shape is None and asked.legacy is None and not is_framed:
                await visit.answer_long(found.content)
                return
            result = await found.load(self._draw(visit, "response"))
        if method is Method.GET_EXTENDED_CARD:
            visit.headers |= PRIVATE
        visit.echo(call, asked)
        await visit.answer(visit.binding.render_result(asked.write_result(result)))

    def _take_body(self, visit: HttpVisit) -> bytes | None:
        """The whole body, if it has arrived.

        Raises:
            TooLarge: it is over the limit.
        """
        body = None if visit.offer is None else visit.offer.take_body()
        if body is not None and len(body) > self.body_limit_bytes:
            raise TooLarge("the body", self.body_limit_bytes)
        return body

    async def _read_body(self, visit: HttpVisit) -> bytes:
        drawn = self._draw(visit, "body")
        return await visit.parsed.incoming.read_body(visit.receive, self.body_limit_bytes, drawn)

    def _draw(self, visit: HttpVisit, kind: MemoryUse) -> MemoryDraw:
        drawn = MemoryDraw(self.memory.bind(kind, f"caller:{visit.caller}"))
        visit.drawn.append(drawn)
        return drawn

    def _find_tenant(self, agent: str, tenant: Json) -> str:
        """The agent that the path and the ``tenant`` parameter name together.

        Raises:
            InvalidInput: there is no such tenant, or the path names another one.
        """
        if not isinstance(tenant, str):
            raise InvalidInput(TENANT, "must be a text")
        # A caller may have the gRPC card, where the tenant is the whole name.
        known = {agent, find_tenant(agent)}
        if tenant in known:
            return agent
        name = name_tenant(agent, tenant)
        if find_tenant(agent) is not None or name not in self.agents.names:
            raise InvalidInput(TENANT, f"{tenant[:80]!r} is not a tenant of this agent")
        return name

    def _authorize(
        self, visit: HttpVisit, asked: NormalizedCall, principal: Principal
    ) -> OperationCall:
        """The call, if its caller has the right to it.

        Raises:
            Forbidden: it does not have it.
            InvalidInput: a header has an invalid value.
        """
        known = visit.parsed.admitted
        if (
            known is None
            or known.method is not asked.method
            or known.call.principal is not principal
            or known.call.agent != visit.agent
            or known.call.version != asked.version
        ):
            require_scope(principal, SCOPES[asked.method])
            known = visit.parsed.admitted = self._compose(visit, asked, principal)
        set_call_context(known.call.asked, known.authorization)
        return known.ask(asked.params)

    def _compose(
        self, visit: HttpVisit, asked: NormalizedCall, principal: Principal
    ) -> AuthorizedCall:
        incoming, shown = visit.parsed.incoming, visit.parsed.shown
        named = read_extensions(incoming, legacy=asked.legacy is not None)
        headers, query = incoming.headers, incoming.query
        active = activate(named)
        admitted = AdmittedCaller(self.authenticator, shown, principal, visit.agent, asked.method)
        call = OperationCall(
            principal,
            visit.agent,
            {},
            version=asked.version,
            judge=admitted.judge,
            asked=named,
            extensions=active,
            idem=_read_key(incoming) if _KEY in headers else None,
            traceparent=headers.get("traceparent"),
            tracestate=headers.get("tracestate"),
            wish=read_resume_request(headers, query, active) if active or query else None,
            own_url=incoming.own_url if asked.method is Method.GET_EXTENDED_CARD else None,
            in_pieces=asked.method in MAY_BE_LONG,
        )
        authorization = headers.get("authorization")
        return AuthorizedCall(asked.method, call, Secret(authorization) if authorization else None)

    async def _stream(
        self, visit: HttpVisit, method: Streaming, asked: NormalizedCall, call: OperationCall
    ) -> None:
        stream = EventStream(
            visit.send,
            visit.binding,
            visit.agent,
            _RETRY_MS + self.ids.draw(_RETRY_BITS),
            self.keep_alive_s,
            visit.headers,
            choose_form(asked.form, marked=RESUME in call.extensions),
            partial(visit.echo, call, asked),
            self._draw(visit, "response"),
            is_framed=visit.parsed.incoming.is_framed,
        )
        visit.stream = stream
        async with self.operations.open(method, call) as followed:
            visit.headers |= write_resumed(resumed=followed.resumed)
            if followed.resumed:
                await stream.start()
            try:
                with self.operations.waits.hold(visit.watch, call.judge):
                    failure = await stream.copy(asked.limit(followed.batches))
            except Draining:
                if not stream.started:
                    raise
                visit.outcome = "drained"
                await stream.end()
            except CallerError as error:
                visit.outcome = error.stable_code
                await stream.fail(error)
            else:
                visit.outcome = failure.stable_code if failure else "ok"


def _needs_no_body(target: PathTarget) -> bool:
    return target not in _NEED_BODY


def _read_call(visit: HttpVisit, body: bytes) -> NormalizedCall:
    """Parses a JSON-RPC request; a refusal carries its id as far as there is one."""
    try:
        rpc_id, method, params = read_rpc(body)
    except InvalidRequest as error:
        visit.binding = RpcBinding(error.rpc_id)
        version = visit.parsed.incoming.version
        if version == LEGACY and error.field == "id":
            check_without_id(version, body)
        raise
    except InvalidInput as error:
        if error.field == "params":
            # Only the envelope has been checked so far, and it is valid.
            shown = read_object(body)["id"]
            visit.binding = RpcBinding(shown if isinstance(shown, str | int) else None)
        raise
    visit.binding = RpcBinding(rpc_id)
    incoming = visit.parsed.incoming
    asked = normalize_rpc(incoming.version, method, params, unsaid=not incoming.names_version)
    if asked.legacy is not None and asked.method in _STREAMS:
        visit.binding = RpcBinding(rpc_id, in_events=True)
    return asked


def _read_params(incoming: Incoming, body: bytes, named: Mapping[str, str]) -> JsonObject:
    """The params of HTTP+JSON; path parameters override the same names in query or body."""
    params = read_query(incoming.query) if incoming.verb == "GET" else read_object(body)
    for name, value in named.items():
        params.pop(_SNAKE.get(name, name), None)
        params[name] = value
    return params


def _read_key(incoming: Incoming) -> str | None:
    key = incoming.headers.get(_KEY)
    try:
        check_key(key)
    except InvalidInput as error:
        raise InvalidInput(KEY_HEADER, error.reason) from None
    return key
