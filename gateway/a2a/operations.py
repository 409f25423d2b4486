"""The operations of A2A 1.0 over the service object, for every binding: takes params, returns results."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final, Literal, Protocol, TypeAlias, assert_never, cast

from passerelle.a2a_mapping.errors import PushNotificationNotSupported
from passerelle.a2a_mapping.extensions import RESUME
from passerelle.a2a_mapping.history import cut_history
from passerelle.a2a_mapping.inbound import read_list, read_send, read_task
from passerelle.a2a_mapping.pauses import read_await_approval
from passerelle.a2a_mapping.rpc import Method
from passerelle.a2a_mapping.version import CURRENT
from passerelle.channels.stream_ends import StreamEnd
from passerelle.channels.stream_frame import cut_stream
from passerelle.core.commands import (
    CancelTask,
    CommandService,
    GetTask,
    ListTasks,
    SubmitTurn,
    TurnAccepted,
)
from passerelle.core.errors import Draining, NotFound, UnsupportedOperation
from passerelle.core.frozen import frozen
from passerelle.core.principal import AccessScope
from passerelle.core.wire.record import value
from passerelle.runtime.common.calls import require_operation
from passerelle.runtime.limits.gate import UNBOUND, StreamSeats

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable

    from passerelle.a2a_mapping.inbound import SendRequest
    from passerelle.a2a_mapping.resume import ResumeRequest
    from passerelle.a2a_mapping.version import Version
    from passerelle.channels.stream_frame import FollowedStream, Followers
    from passerelle.core.commands import WaitMode
    from passerelle.core.principal import Principal
    from passerelle.core.push import PushConfig
    from passerelle.core.wire.json import JsonObject
    from passerelle.delegation.runs.active_runs import ResultCallback
    from passerelle.gateway.a2a.http_request import Watch
    from passerelle.gateway.a2a.push import ExtendedCards, PushOperations
    from passerelle.gateway.a2a.waits import Judge, Waits
    from passerelle.runtime.limits.gate import Gate

Streaming: TypeAlias = Literal[Method.SEND_STREAMING_MESSAGE, Method.SUBSCRIBE_TO_TASK]
PushMethod: TypeAlias = Literal[
    Method.CREATE_PUSH_CONFIG,
    Method.GET_PUSH_CONFIG,
    Method.LIST_PUSH_CONFIGS,
    Method.DELETE_PUSH_CONFIG,
]
_Other: TypeAlias = (
    Literal[
        Method.GET_TASK,
        Method.LIST_TASKS,
        Method.CANCEL_TASK,
        Method.GET_EXTENDED_CARD,
    ]
    | PushMethod
)
Single: TypeAlias = Literal[Method.SEND_MESSAGE] | _Other
MAY_BE_LONG: Final = frozenset({Method.GET_TASK, Method.CANCEL_TASK})
"""Their answer is a stored Task: a large one is read from the store while it is written."""
_READS: Final = (AccessScope.CALL, AccessScope.READ_TASKS)
_WRITES: Final = (AccessScope.CALL, AccessScope.WRITE_TASKS)
SCOPES: Final[Mapping[Method, tuple[AccessScope, ...]]] = {
    Method.SEND_MESSAGE: (AccessScope.CALL,),
    Method.SEND_STREAMING_MESSAGE: (AccessScope.CALL,),
    Method.GET_TASK: _READS,
    Method.LIST_TASKS: _READS,
    Method.CANCEL_TASK: _WRITES,
    Method.SUBSCRIBE_TO_TASK: _READS,
    Method.CREATE_PUSH_CONFIG: _WRITES,
    Method.GET_PUSH_CONFIG: _READS,
    Method.LIST_PUSH_CONFIGS: _READS,
    Method.DELETE_PUSH_CONFIG: _WRITES,
    Method.GET_EXTENDED_CARD: _READS,
}
"""The scopes of each method; one of them is enough."""


class WholeAnswer(Protocol):
    """The answer to a message, as an object and as the stored bytes."""

    @property
    def frame(self) -> JsonObject:
        """``{"task": …}`` or ``{"message": …}``."""
        ...

    @property
    def packed(self) -> bytes:
        """The same as JSON bytes."""
        ...


class Turn(Protocol):
    """An accepted message; ``delegation.runs.answers.OpenTurn`` is one."""

    @property
    def accepted(self) -> TurnAccepted:
        """How it was accepted."""
        ...

    @property
    def answer(self) -> WholeAnswer | None:
        """The answer, if it is known and needs no read."""
        ...

    def listen(self, changed: Callable[[], None]) -> bool:
        """Calls ``changed`` once, when there may be an answer. False if nothing here would call it."""
        ...

    def forget(self, changed: Callable[[], None]) -> None:
        """Cancels ``listen``."""
        ...

    async def wait(self) -> JsonObject:
        """Waits for ``{"task": …}`` or ``{"message": …}``."""
        ...


class TurnService(CommandService, Protocol):
    """What the face needs of the service object in addition to commands and queries."""

    async def answer(
        self, principal: Principal, accepted: TurnAccepted, *, at_once: bool = False
    ) -> JsonObject:
        """Waits for ``{"task": …}`` or ``{"message": …}``."""
        ...

    def begin(self, principal: Principal, command: SubmitTurn, told: ResultCallback[Turn]) -> None:
        """``execute`` for a message without a key, with a callback in place of an await."""
        ...

    def follow(
        self,
        principal: Principal,
        target: TurnAccepted | str,
        *,
        agent: str | None = None,
        wish: ResumeRequest | None = None,
        until: StreamEnd | None = None,
        sends: bool = False,
    ) -> Followers:
        """The frames of a turn, or of a task by its facade id; ``until`` may end them before the task does.

        ``sends``: a message to the task follows, or was accepted before as this turn; the first Task includes it.
        """
        ...


@value
class OperationCall:
    """One call over any binding; ``params`` are 1.0 JSON whatever ``version`` the caller speaks.

    ``asked`` are the extensions that the caller named, ``extensions`` the active ones: those that are served here.
    """

    principal: Principal
    agent: str
    params: JsonObject
    version: Version = CURRENT
    asked: frozenset[str] = frozenset()
    extensions: frozenset[str] = frozenset()
    idem: str | None = None
    traceparent: str | None = None
    tracestate: str | None = None
    wish: ResumeRequest | None = None
    """The position from which a subscriber resumes."""
    judge: Judge | None = None
    """Checks whether the caller still has the right to what it waits for."""
    own_url: str | None = None
    """The URL at which the caller of an extended card reached us, if the binding knows it."""
    in_pieces: bool = False
    """Whether a large Task can be sent in chunks."""


@frozen
class Operations:
    """Executes calls. Errors are those of ``core/errors.py``."""

    service: TurnService
    waits: Waits
    push: PushOperations | None
    extended_cards: ExtendedCards | None
    gate: Gate | None
    awaits_approval: Callable[[str], bool]
    """Whether message streams of an agent stay open through an approval, if their caller does not set it."""
    seats: StreamSeats

    async def answer(self, method: Single, call: OperationCall, watch: Watch) -> JsonObject:
        """Executes an operation with a single result."""
        require_operation(call.principal, call.agent, method)
        entered = await self.gate.enter(call.principal, slot=True) if self.gate else UNBOUND
        try:
            if method is Method.SEND_MESSAGE:
                return await self._send(call, watch)
            return await self._answer(method, call)
        finally:
            entered.leave()

    async def _answer(self, method: _Other, call: OperationCall) -> JsonObject:
        match method:
            case Method.GET_TASK:
                task = read_task(call.params)
                return await self._read(
                    call, task.id, task.history_length, in_pieces=call.in_pieces
                )
            case Method.LIST_TASKS:
                return await self.service.read(call.principal, _compose_list(call))
            case Method.CANCEL_TASK:
                command = CancelTask(read_task(call.params).id, call.agent)
                await self.service.execute(call.principal, command, call.idem)
                return await self._read(call, command.task, in_pieces=call.in_pieces)
            case Method.GET_EXTENDED_CARD:
                if self.extended_cards is None:
                    raise UnsupportedOperation("there is no extended agent card")
                return await self.extended_cards.render(call)
            case _:
                return await self._configure_push(method, call)

    async def _configure_push(self, method: PushMethod, call: OperationCall) -> JsonObject:
        push = self._require_push()
        match method:
            case Method.CREATE_PUSH_CONFIG:
                return await push.create(call)
            case Method.GET_PUSH_CONFIG:
                return await push.get(call)
            case Method.LIST_PUSH_CONFIGS:
                return await push.list(call)
            case Method.DELETE_PUSH_CONFIG:
                return await push.delete(call)
            case _:
                assert_never(method)

    def _require_push(self) -> PushOperations:
        if self.push is None:
            raise PushNotificationNotSupported(
                "push notifications are off: there is no secret_key to seal credentials with"
            )
        return self.push

    @asynccontextmanager
    async def open(self, method: Streaming, call: OperationCall) -> AsyncGenerator[FollowedStream]:
        """Opens a stream; the call has been executed when the block starts."""
        require_operation(call.principal, call.agent, method)
        with self.seats.take(call.principal.key):
            entered = await self.gate.enter(call.principal, slot=True) if self.gate else UNBOUND
            try:
                async with self._open(method, call) as followed:
                    yield followed
            finally:
                entered.leave()

    def _open(self, method: Streaming, call: OperationCall) -> Followers:
        match method:
            case Method.SEND_STREAMING_MESSAGE:
                return self._send_streaming(call)
            case Method.SUBSCRIBE_TO_TASK:
                facade = read_task(call.params).id
                return self.service.follow(call.principal, facade, agent=call.agent, wish=call.wish)
            case _:
                assert_never(method)

    @asynccontextmanager
    async def _send_streaming(self, call: OperationCall) -> AsyncGenerator[FollowedStream]:
        request = read_send(call.params)
        async with self._follow_message(call, request) as followed:
            yield cut_stream(followed, request.history_length)

    @asynccontextmanager
    async def _follow_message(
        self, call: OperationCall, request: SendRequest
    ) -> AsyncGenerator[FollowedStream]:
        until = self._end_stream(call)
        if request.task_id is None:
            accepted = await self._submit(call, request, "stream")
            async with self.service.follow(call.principal, accepted, until=until) as followed:
                yield followed
            return
        # Follow the task before sending the message: then no later event is missed, and the Task comes first
        # (A2A 1.0 section 3.1.2).
        opened = self.service.follow(
            call.principal, request.task_id, agent=call.agent, until=until, sends=True
        )
        async with opened as followed:
            accepted = await self._submit(call, request, "stream")
            if not accepted.repeated:
                followed.awaits.append(accepted.turn_id)
                yield followed
                return
        # The events of a repeated message may be before the opened position.
        until = self._end_stream(call)
        repeated = self.service.follow(call.principal, accepted, until=until, sends=True)
        async with repeated as followed:
            yield followed

    def _end_stream(self, call: OperationCall) -> StreamEnd:
        """Where the stream of a message ends; a 0.3 stream also ends at an approval by its own rule."""
        wished = read_await_approval(call.params)
        return StreamEnd(self.awaits_approval(call.agent) if wished is None else wished)

    async def _send(self, call: OperationCall, watch: Watch) -> JsonObject:
        request = read_send(call.params)
        accepted = await self._submit(call, request, "unary" if request.blocking else "none")
        answering = self.service.answer(
            call.principal, accepted, at_once=request.return_immediately
        )
        return await self.await_answer(call, request, accepted, answering, watch)

    async def await_answer(
        self,
        call: OperationCall,
        request: SendRequest,
        accepted: TurnAccepted,
        answering: Awaitable[JsonObject],
        watch: Watch,
    ) -> JsonObject:
        """Waits for the result of an accepted message, as long as its caller waits."""
        try:
            with self.waits.hold(watch, call.judge):
                answer = await answering
        except Draining:
            return await self.show(call, request, accepted)
        if "task" in answer and RESUME in call.extensions:
            # The mark and the Task must be of the same moment, so both are read again.
            return {"task": await self._read(call, accepted.facade, request.history_length)}
        return cut_answer(answer, request)

    async def _read(
        self,
        call: OperationCall,
        facade: str,
        history_length: int | None = None,
        *,
        in_pieces: bool = False,
    ) -> JsonObject:
        """A task as stored; with generation and cursor for callers that resume (resume.md R11)."""
        query = GetTask(facade, call.agent, history_length, RESUME in call.extensions, in_pieces)
        return await self.service.read(call.principal, query)

    async def show(
        self, call: OperationCall, request: SendRequest, accepted: TurnAccepted
    ) -> JsonObject:
        """The task as stored: another instance continues it, and its id is worth more to the caller than an error."""
        try:
            return {"task": await self._read(call, accepted.facade, request.history_length)}
        except NotFound:
            raise Draining(
                "this instance is shutting down; the message was accepted", retry_after_s=1
            ) from None

    async def _submit(
        self, call: OperationCall, request: SendRequest, wait: WaitMode
    ) -> TurnAccepted:
        command = compose_turn(call, request, wait, self.read_push(call, request))
        result = await self.service.execute(call.principal, command, call.idem)
        return cast("TurnAccepted", result)

    def read_push(self, call: OperationCall, request: SendRequest) -> PushConfig | None:
        """The push config inside a message.

        Raises:
            Forbidden: its caller may not set one.
            PushNotificationNotSupported: this gateway stores none.
            InvalidInput: a field is malformed; it is named.
        """
        if not request.push:
            return None
        # A caller that may not set a webhook must not set one inside a message either.
        require_operation(call.principal, call.agent, Method.CREATE_PUSH_CONFIG)
        return self._require_push().read(call, request.push)


def compose_turn(
    call: OperationCall, request: SendRequest, wait: WaitMode, push: PushConfig | None
) -> SubmitTurn:
    """The command for a message."""
    return SubmitTurn(
        call.agent,
        request.message,
        "a2a",
        wait,
        # Positional: keyword arguments take twice the time.
        request.task_id,
        request.context_id,
        None,
        request.params,
        call.traceparent,
        call.tracestate,
        push,
    )


def cut_answer(answer: JsonObject, request: SendRequest) -> JsonObject:
    """An answer with as much history as its caller requests."""
    task = answer.get("task")
    return {"task": cut_history(task, request.history_length)} if isinstance(task, dict) else answer


def _compose_list(call: OperationCall) -> ListTasks:
    request = read_list(call.params)
    return ListTasks(
        agent=call.agent,
        context_id=request.context_id,
        state=request.state,
        page_size=request.page_size,
        page_token=request.page_token,
        history_length=request.history_length,
        after_ms=request.after_ms,
        include_artifacts=request.include_artifacts,
    )
