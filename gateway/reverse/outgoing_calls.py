"""Calls from an agent that dialled in to other agents: implements ``channels.reverse_asks.AskedAgents``.

A call uses the same operations as over any other binding, with the caller's rights, limits and policy. The difference
is that the socket identifies the caller, and the frame names the agent.
"""

from __future__ import annotations

from contextlib import aclosing
from dataclasses import field, replace
from typing import TYPE_CHECKING, Final

from passerelle.a2a_mapping.extensions import RESUME
from passerelle.a2a_mapping.resume import ResumeRequest
from passerelle.a2a_mapping.rpc import Method, read_method
from passerelle.a2a_mapping.version import CURRENT, HEADER, judge_version
from passerelle.core.agent_name import find_tenant, is_served
from passerelle.core.errors import (
    CallerError,
    InvalidInput,
    NotFound,
    VersionNotSupported,
)
from passerelle.core.frozen import frozen
from passerelle.gateway.a2a.calls import TENANT
from passerelle.gateway.a2a.extensions import activate, read_metadata
from passerelle.gateway.a2a.frame_forms import choose_form
from passerelle.gateway.a2a.http_request import ignore_disconnect
from passerelle.gateway.a2a.operations import MAY_BE_LONG, SCOPES, OperationCall
from passerelle.gateway.a2a.visits import Visits
from passerelle.runtime.common.calls import check_key, require_operation, require_scope
from passerelle.runtime.common.carried import set_call_context
from passerelle.runtime.memory.room import MemoryDraw
from passerelle.runtime.observability.logs import Requests
from passerelle.runtime.records.long_content import LongTaskError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from passerelle.channels.reverse_asks import AgentAsk
    from passerelle.core.principal import Principal
    from passerelle.core.wire.json import JsonObject
    from passerelle.gateway.a2a.face import FaceParts
    from passerelle.gateway.a2a.operations import Operations, Single, Streaming
    from passerelle.gateway.a2a.visits import Visit

_AFTER: Final = "after"


@frozen
class OutgoingCalls:
    """Serves the calls of all links. ``operations`` and ``parts`` are those of the A2A face."""

    operations: Operations
    parts: FaceParts
    _requests: Requests = field(init=False, repr=False)
    _visits: Visits = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_requests", Requests(self.parts.ids))
        visits = Visits(self.parts.metrics, self.parts.spans, "channel")
        object.__setattr__(self, "_visits", visits)

    async def ask(
        self,
        ask: AgentAsk,
        deliver: Callable[[bytes, str], Awaitable[None]],
        answer: Callable[[JsonObject], Awaitable[None]],
    ) -> None:
        """Executes a call; it is counted like one over any binding."""
        self._requests.begin()
        with self.operations.waits.present:
            async with self._visits.receive(ask.headers, "CHANNEL", CURRENT) as visit:
                await self._serve(visit, ask, deliver, answer)

    async def _serve(
        self,
        visit: Visit,
        ask: AgentAsk,
        deliver: Callable[[bytes, str], Awaitable[None]],
        answer: Callable[[JsonObject], Awaitable[None]],
    ) -> None:
        principal = ask.find_principal()
        if not is_served(ask.to, self.parts.agents.names) or not principal.sees(ask.to):
            raise NotFound("agent", ask.to)
        visit.agent = ask.to
        _check_version(ask)
        method = read_method(ask.method)
        visit.operation = method
        require_scope(principal, SCOPES[method])
        call = self._compose(ask, method, principal)
        match method:
            case Method.SEND_STREAMING_MESSAGE | Method.SUBSCRIBE_TO_TASK:
                await self._stream(method, call, deliver)
            case _:
                drawn = self._draw(call)
                try:
                    await answer(await self._answer(method, call, drawn))
                finally:
                    drawn.close()

    async def _answer(self, method: Single, call: OperationCall, drawn: MemoryDraw) -> JsonObject:
        """The result of a call; ``drawn`` holds the memory of a large one until it was sent."""
        call = replace(call, in_pieces=method in MAY_BE_LONG)
        try:
            return await self.operations.answer(method, call, ignore_disconnect)
        except LongTaskError as found:
            return await found.load(drawn)

    async def _stream(
        self,
        method: Streaming,
        call: OperationCall,
        deliver: Callable[[bytes, str], Awaitable[None]],
    ) -> None:
        """Delivers every frame as stored; a caller that does not read holds up its own stream only."""
        form = choose_form(None, marked=RESUME in call.extensions)
        drawn = self._draw(call)
        async with self.operations.open(method, call) as followed:
            with self.operations.waits.hold(ignore_disconnect, call.judge):
                async with aclosing(followed.frames) as frames:
                    async for frame in frames:
                        try:
                            await deliver(form.render(await frame.load(drawn)), frame.cursor)
                        finally:
                            drawn.close()

    def _draw(self, call: OperationCall) -> MemoryDraw:
        return MemoryDraw(self.parts.memory.bind("response", f"caller:{call.principal.id}"))

    def _compose(self, ask: AgentAsk, method: Method, principal: Principal) -> OperationCall:
        named = read_metadata(ask.headers)
        set_call_context(named, None)
        check_key(ask.idem)
        params, wish = _read_resume(ask, method)
        return OperationCall(
            principal,
            ask.to,
            params,
            asked=named,
            extensions=activate(named),
            idem=ask.idem,
            traceparent=ask.headers.get("traceparent"),
            tracestate=ask.headers.get("tracestate"),
            wish=wish,
            judge=OutgoingCaller(ask, method).judge,
        )


@frozen
class OutgoingCaller:
    """The caller of a call and its rights; the link checks its credential."""

    ask: AgentAsk
    method: Method

    async def judge(self) -> CallerError | None:
        """The reason why the call may not go on; None if it may."""
        now = self.ask.find_principal()
        try:
            if not now.sees(self.ask.to):
                raise NotFound("agent", self.ask.to)
            require_scope(now, SCOPES[self.method])
            require_operation(now, self.ask.to, self.method)
        except CallerError as error:
            return error
        return None


def _check_version(ask: AgentAsk) -> None:
    """Links use 1.0, and so do the calls over them."""
    said = ask.headers.get(HEADER.lower())
    if said is not None and judge_version(said, None) != CURRENT:
        raise VersionNotSupported(said[:20], (CURRENT,))


def _read_resume(ask: AgentAsk, method: Method) -> tuple[JsonObject, ResumeRequest | None]:
    """The params of A2A, and the position from which a subscriber resumes."""
    params = {**ask.params}
    tenant = params.pop(TENANT, None)
    if tenant not in (None, "", ask.to, find_tenant(ask.to)):
        raise InvalidInput(TENANT, f"is not a tenant of the agent {ask.to!r}")
    if method is not Method.SUBSCRIBE_TO_TASK or _AFTER not in params:
        return params, None
    after = params.pop(_AFTER)
    if not isinstance(after, str) or not after:
        raise InvalidInput(_AFTER, "must be a cursor")
    return params, ResumeRequest(after)
