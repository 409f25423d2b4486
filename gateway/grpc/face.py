"""The A2A face over gRPC: the same operations, the same checks of callers, other messages.

gRPC has no path. The ``tenant`` of a request names the agent, or a tenant of it (``echo/acme``), as on the card; a
request without one goes to the default agent. Whole numbers are returned as integers, and unknown members are dropped:
protobuf cannot represent either.
"""

from __future__ import annotations

import asyncio
from dataclasses import field, replace
from typing import TYPE_CHECKING, Any, Final

import grpc
import orjson
from google.protobuf.message import DecodeError

from passerelle.a2a_mapping.extensions import RESUME
from passerelle.a2a_mapping.resume import read_resume_request, write_resumed
from passerelle.a2a_mapping.rpc import Method
from passerelle.a2a_mapping.v0_3.cards import spell_card
from passerelle.a2a_mapping.version import HEADER, judge_version
from passerelle.channels.stream_frame import unpack
from passerelle.core.agent_name import is_served
from passerelle.core.errors import (
    Draining,
    InvalidInput,
    MalformedBody,
    NotFound,
    PasserelleError,
    VersionNotSupported,
)
from passerelle.core.frozen import frozen
from passerelle.gateway.a2a.extensions import activate, read_metadata, write_active
from passerelle.gateway.a2a.frame_forms import choose_form
from passerelle.gateway.a2a.http_request import ignore_disconnect
from passerelle.gateway.a2a.normalized_call import NormalizedCall, normalize_grpc
from passerelle.gateway.a2a.operations import MAY_BE_LONG, SCOPES, OperationCall
from passerelle.gateway.a2a.visits import Visits
from passerelle.gateway.a2a.waits import AdmittedCaller
from passerelle.gateway.grpc.connections import GrpcConnections
from passerelle.gateway.grpc.metadata import GrpcHead, list_texts, read_head, refuse_repeated
from passerelle.peers.grpc.status import GrpcRefusal, render_refusal
from passerelle.peers.grpc.wire import to_json, to_message
from passerelle.runtime.common.calls import KEY_HEADER, check_key, require_scope
from passerelle.runtime.common.carried import list_confirmed, set_call_context
from passerelle.runtime.common.secret import Secret
from passerelle.runtime.memory.room import MemoryDraw
from passerelle.runtime.observability.logs import Requests
from passerelle.runtime.records.long_content import LongTaskError

if TYPE_CHECKING:
    from collections.abc import Callable

    from google.protobuf.message import Message

    from passerelle.core.principal import Principal
    from passerelle.core.wire.json import JsonObject
    from passerelle.gateway.a2a.face import FaceParts
    from passerelle.gateway.a2a.operations import Operations, Streaming
    from passerelle.gateway.a2a.visits import Visit
    from passerelle.gateway.grpc.metadata import Context
    from passerelle.peers.grpc.methods import GrpcMethod, GrpcService

TENANT: Final = "tenant"


@frozen
class GrpcFace:
    """Makes the service handlers. ``operations``, and so the access rules, are those of the other bindings."""

    operations: Operations
    parts: FaceParts
    default_agent: str | None
    connections: GrpcConnections = field(default_factory=GrpcConnections)
    requests: Requests = field(init=False)
    _visits: Visits = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "requests", Requests(self.parts.ids))
        visits = Visits(self.parts.metrics, self.parts.spans, "grpc")
        object.__setattr__(self, "_visits", visits)

    def make_handler(self, service: GrpcService) -> grpc.GenericRpcHandler:
        """The handler of one service for a gRPC server."""
        return grpc.method_handlers_generic_handler(
            service.name, {name: self._make(service, row) for name, row in service.rows.items()}
        )

    def _make(self, service: GrpcService, row: GrpcMethod) -> grpc.RpcMethodHandler[Any, Any]:
        requests = self.requests
        streams = row.method in {Method.SEND_STREAMING_MESSAGE, Method.SUBSCRIBE_TO_TASK}
        make: Callable[..., grpc.RpcMethodHandler[Any, Any]] = (
            grpc.unary_stream_rpc_method_handler if streams else grpc.unary_unary_rpc_method_handler
        )

        async def serve(request: bytes, context: Context) -> Message | None:
            requests.begin()
            with self.operations.waits.present:
                outcome = await self._answer(service, row, request, context)
                if isinstance(outcome, GrpcRefusal):
                    await context.abort(outcome.code, outcome.message, outcome.trailing)
                return outcome

        return make(
            serve,
            response_serializer=row.response.SerializeToString,
        )

    async def _answer(
        self, service: GrpcService, row: GrpcMethod, request: bytes, context: Context
    ) -> Message | GrpcRefusal | None:
        """Serves, and turns every error into a status."""
        head = read_head(context)
        try:
            async with self._visits.receive(head.headers, "GRPC", service.version) as visit:
                with self.connections.begin(head.peer, list_texts(context)):
                    return await self._serve(visit, service, row, request, context)
        except PasserelleError as error:
            return render_refusal(error, service.version)

    async def _serve(
        self, visit: Visit, service: GrpcService, row: GrpcMethod, request: bytes, context: Context
    ) -> Message | None:
        refuse_repeated(context)
        head = read_head(context, self.parts.reader.certificate_header)
        shown = self.parts.reader.read(head.headers, head.address)
        principal = await self.parts.authenticator.authenticate(shown)
        self.connections.note_authenticated(head.peer)
        params = to_json(_parse(row, request))
        visit.agent = self._choose_agent(params.pop(TENANT, None), principal)
        visit.operation = row.method
        _check_version(head, service)
        require_scope(principal, SCOPES[row.method])
        asked = normalize_grpc(service.version, row.method, params)
        admitted = AdmittedCaller(
            self.parts.authenticator, shown, principal, visit.agent, asked.method
        )
        call = replace(self._compose(visit.agent, asked, head, principal), judge=admitted.judge)
        match asked.method:
            case Method.SEND_STREAMING_MESSAGE | Method.SUBSCRIBE_TO_TASK:
                await self._stream(visit, row, asked, asked.method, call, context)
                return None
            case _:
                if asked.method in MAY_BE_LONG:
                    call = replace(call, in_pieces=True)
                try:
                    result = await self.operations.answer(asked.method, call, ignore_disconnect)
                except LongTaskError as found:
                    drawn = MemoryDraw(self.parts.memory.bind("response", f"caller:{principal.id}"))
                    # The stubs require a class, the library accepts any callable.
                    context.add_done_callback(lambda _: drawn.close())  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
                    result = await found.load(drawn)
                    await _send_headers(context, _echo(asked, call))
                    # Protobuf needs seconds for 60 MB, so it runs in a thread: the loop must serve other callers.
                    return await asyncio.to_thread(to_message, _write(asked, result), row.response)
                await _send_headers(context, _echo(asked, call))
                return to_message(_write(asked, result), row.response)

    async def _stream(
        self,
        visit: Visit,
        row: GrpcMethod,
        asked: NormalizedCall,
        method: Streaming,
        call: OperationCall,
        context: Context,
    ) -> None:
        """Writes every frame; a caller that reads slowly holds up its own writer only."""
        operations = self.operations
        form = choose_form(asked.form, marked=RESUME in call.extensions)
        drawn = MemoryDraw(self.parts.memory.bind("response", f"caller:{call.principal.id}"))
        started = False
        async with operations.open(method, call) as followed:
            resumed = write_resumed(resumed=followed.resumed)
            if followed.resumed:
                # A resuming reader gets the headers at once, also if it has missed nothing (resume.md R6).
                await _send_headers(context, _echo(asked, call) | resumed)
                started = True
            try:
                with operations.waits.hold(ignore_disconnect, call.judge):
                    async for frame in unpack(asked.limit(followed.batches)):
                        if not started:
                            await _send_headers(context, _echo(asked, call) | resumed)
                            started = True
                        value = orjson.loads(form.render(await frame.load(drawn)))
                        await context.write(to_message(value, row.response))
                        drawn.close()
            except Draining:
                if not started:
                    raise
                visit.outcome = "drained"
            finally:
                drawn.close()

    def _choose_agent(self, tenant: object, principal: Principal) -> str:
        """The agent of a call; an unknown agent and a forbidden one look the same.

        Raises:
            NotFound: no such agent for this caller.
            InvalidInput: there is no tenant, and no default agent is configured.
        """
        agent = tenant or self.default_agent
        if not isinstance(agent, str):
            raise InvalidInput(TENANT, "is required: it names the agent, as on its card")
        if not principal.sees(agent) or not is_served(agent, self.parts.agents.names):
            raise NotFound("agent", agent)
        return agent

    def _compose(
        self, agent: str, asked: NormalizedCall, head: GrpcHead, principal: Principal
    ) -> OperationCall:
        named = read_metadata(head.headers, legacy=asked.legacy is not None)
        authorization = head.headers.get("authorization")
        set_call_context(named, Secret(authorization) if authorization else None)
        active = activate(named)
        return OperationCall(
            principal,
            agent,
            asked.params,
            version=asked.version,
            asked=named,
            extensions=active,
            idem=_read_key(head),
            traceparent=head.headers.get("traceparent"),
            tracestate=head.headers.get("tracestate"),
            wish=read_resume_request(head.headers, {}, active),
        )


def _check_version(head: GrpcHead, service: GrpcService) -> None:
    """The service name and the metadata must name the same version (A2A 1.0 section 3.6.2)."""
    said = head.headers.get(HEADER.lower())
    version = judge_version(said, None)
    if version != service.version:
        raise VersionNotSupported(version, (service.version,), unsaid=not said)


def _echo(asked: NormalizedCall, call: OperationCall) -> dict[str, str]:
    active = call.extensions | list_confirmed() if call.asked else call.extensions
    return write_active(active, legacy=asked.legacy is not None)


def _write(asked: NormalizedCall, result: JsonObject) -> JsonObject:
    """A result in its protobuf form; only a 0.3 card has other names there than in JSON."""
    written = asked.write_result(result)
    value = written if isinstance(written, dict) else {}
    if asked.legacy is not None and asked.method is Method.GET_EXTENDED_CARD:
        return spell_card(value)
    return value


def _read_key(head: GrpcHead) -> str | None:
    key = head.headers.get(KEY_HEADER.lower())
    check_key(key)
    return key


async def _send_headers(context: Context, headers: dict[str, str]) -> None:
    """Sends what HTTP has in headers; sends nothing if there are none."""
    if headers:
        await context.send_initial_metadata(
            tuple((name.lower(), value) for name, value in headers.items())
        )


def _parse(row: GrpcMethod, request: bytes) -> Message:
    """Parses the message of a call; the library would end a call with UNKNOWN for invalid bytes."""
    try:
        return row.request.FromString(request)
    except DecodeError:
        raise MalformedBody("request", f"it is not a valid {row.request.DESCRIPTOR.name}") from None
