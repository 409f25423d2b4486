"""Messages whose callers wait for the answer without a task of their own.

Most messages need no await before they are stored: the caller, the agent's card and the caller's limits are known. Such
a message starts in the callback that read it, and one object waits; the driver of the run calls it with the answer.
Everything else, and every invalid message, is left to the face without any effect here.
"""

from __future__ import annotations

import asyncio
from contextvars import copy_context
from dataclasses import field
from time import monotonic
from typing import TYPE_CHECKING, Final

import structlog

from passerelle.a2a_mapping.inbound import read_send
from passerelle.a2a_mapping.rpc import Method, read_rpc
from passerelle.core.errors import Draining, PasserelleError, StoreUnavailable
from passerelle.core.frozen import frozen
from passerelle.core.wire.record import value
from passerelle.gateway.a2a.bindings import RpcBinding
from passerelle.gateway.a2a.calls import TENANT, HttpVisit
from passerelle.gateway.a2a.http_request import CallerLeftError
from passerelle.gateway.a2a.normalized_call import normalize_rpc
from passerelle.gateway.a2a.operations import compose_turn, cut_answer
from passerelle.protocol.concurrency import keep_until_done
from passerelle.runtime.common.calls import require_operation
from passerelle.runtime.common.carried import set_call_context
from passerelle.runtime.limits.gate import UNBOUND

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from contextvars import Context
    from typing import Any

    from starlette.types import Receive, Send

    from passerelle.a2a_mapping.inbound import SendRequest
    from passerelle.core.push import PushConfig
    from passerelle.core.wire.json import JsonObject
    from passerelle.gateway.a2a.heads import AuthorizedCall, ParsedHead, ServerExtensions
    from passerelle.gateway.a2a.normalized_call import NormalizedCall
    from passerelle.gateway.a2a.operations import OperationCall, Operations, Turn, WholeAnswer
    from passerelle.gateway.a2a.reply import HttpReply
    from passerelle.gateway.a2a.visits import Visits
    from passerelle.gateway.a2a.waits import Judge
    from passerelle.gateway.auth.authenticator import CachedAuthenticator
    from passerelle.runtime.limits.gate import AdmittedRequest
    from passerelle.runtime.observability.logs import Requests


_logger: Final = structlog.get_logger("passerelle")


@value
class _Message:
    """A message that can start at once, as received."""

    binding: RpcBinding
    asked: NormalizedCall
    request: SendRequest
    push: PushConfig | None


def _read(
    body: bytes, parsed: ParsedHead, known: OperationCall, operations: Operations
) -> _Message | None:
    """The message of a request like ``known``; None if the face has to handle it.

    Raises:
    PasserelleError: the message must be rejected.
    """
    rpc_id, method, params = read_rpc(body)
    asked = normalize_rpc(parsed.incoming.version, method, params)
    if (
        asked.method is not Method.SEND_MESSAGE
        or asked.version != known.version
        or TENANT in asked.params
    ):
        return None
    request = read_send(asked.params)
    if request.return_immediately or request.task_id is not None:
        return None
    require_operation(known.principal, known.agent, Method.SEND_MESSAGE)
    return _Message(RpcBinding(rpc_id), asked, request, operations.read_push(known, request))


@frozen
class UnaryCalls:
    """Starts such messages, and tracks those that wait."""

    operations: Operations
    authenticator: CachedAuthenticator
    visits: Visits
    requests: Requests
    body_limit_bytes: int
    finish: Callable[[HttpVisit, float], None]
    """Called when a visit has ended, with its duration in seconds."""
    _tasks: set[asyncio.Task[None]] = field(default_factory=set["asyncio.Task[None]"])

    def begin(
        self,
        parsed: ParsedHead,
        body: bytes,
        offer: ServerExtensions,
        receive: Receive,
        send: Send,
    ) -> bool:
        """Takes a JSON-RPC message; returns False, without effect, for any other request."""
        admitted = parsed.admitted
        if admitted is None or len(body) > self.body_limit_bytes:
            return False
        known, operations = admitted.call, self.operations
        if (
            admitted.method is not Method.SEND_MESSAGE
            or known.agent != parsed.agent
            or known.extensions
            or known.idem is not None
            or self.authenticator.authenticate_cached(parsed.shown) is not known.principal
        ):
            return False
        try:
            message = _read(body, parsed, known, operations)
        except PasserelleError:
            # The face reads it again and rejects it like any other.
            return False
        except Exception:
            # No caller up the stack would answer: the face serves it as it serves every other.
            _logger.exception("request.not_begun")
            return False
        if message is None:
            return False
        gate = operations.gate
        entered = gate.enter_now(known.principal) if gate is not None else UNBOUND
        if entered is None:
            return False
        operations.waits.present.enter()
        try:
            visit = HttpVisit(
                parsed,
                receive,
                send,
                offer,
                message.binding,
                {},
                agent=known.agent,
                operation=Method.SEND_MESSAGE,
                caller=known.principal.id,
            )
            turn = compose_turn(known, message.request, "unary", message.push)
            self.requests.begin()
            set_call_context(known.asked, admitted.authorization)
            operations.service.begin(
                known.principal, turn, _PendingAnswer(self, visit, message, admitted, entered)
            )
        except Exception:
            operations.waits.present.leave()
            entered.leave()
            _logger.exception("request.not_begun")
            return False
        return True

    def spawn(self, work: Coroutine[Any, Any, None], context: Context) -> None:
        """Runs what takes longer than a callback; ``context`` is the request's."""
        keep_until_done(asyncio.get_running_loop().create_task(work, context=context), self._tasks)


class _PendingAnswer:
    """Waits for the answer to one message: the ``ResultCallback`` of its turn, and a ``Wait`` from then on."""

    __slots__ = (
        "_admitted",
        "_began_s",
        "_calls",
        "_context",
        "_entered",
        "_message",
        "_turn",
        "_unwatch",
        "_visit",
    )

    def __init__(
        self,
        calls: UnaryCalls,
        visit: HttpVisit,
        message: _Message,
        admitted: AuthorizedCall,
        entered: AdmittedRequest,
    ) -> None:
        self._calls = calls
        self._visit = visit
        self._message = message
        self._admitted = admitted
        self._entered = entered
        self._began_s = monotonic()
        self._context = copy_context()
        """The request's context: the callbacks run in another one."""
        self._turn: Turn | None = None
        """The turn, while it is listened to."""
        self._unwatch: Callable[[], object] | None = None

    @property
    def judge(self) -> Judge | None:
        return self._admitted.call.judge

    @property
    def _call(self) -> OperationCall:
        return self._admitted.ask(self._message.asked.params)

    def on_result(self, turn: Turn) -> None:
        if not turn.listen(self._on_answer):
            self._spawn(self._serve(self._wait(turn)))
            return
        self._turn = turn
        self._calls.operations.waits.add(self)
        if self._is_waiting:  # not during a drain
            self._unwatch = self._visit.watch(self._on_disconnect)

    @property
    def _is_waiting(self) -> bool:
        return self._turn is not None

    def on_failure(self, failure: BaseException) -> None:
        if not isinstance(failure, Exception):
            # Its append may have been in progress.
            failure = StoreUnavailable("this instance was shut down meanwhile", "unknown")
        self._spawn(self._serve(_fail(failure)))

    def end(self, cause: PasserelleError | CallerLeftError) -> None:
        """``Wait``: the run continues, and this caller no longer waits for it."""
        turn = self._stop_waiting()
        if turn is None:
            return
        turn.forget(self._on_answer)
        if isinstance(cause, Draining):
            shown = self._calls.operations.show(self._call, self._message.request, turn.accepted)
            self._spawn(self._serve(shown))
        else:
            self._spawn(self._serve(_fail(cause)))

    def _on_disconnect(self) -> None:
        self.end(CallerLeftError())

    def _on_answer(self) -> None:
        """Called when there may be an answer."""
        turn = self._stop_waiting()
        if turn is None:
            return
        answer = turn.answer
        if answer is None:
            self._spawn(self._serve(self._wait(turn)))
        else:
            self._context.run(self._answer, answer)

    def _answer(self, answer: WholeAnswer) -> None:
        try:
            if self._message.asked.legacy is None and self._message.request.history_length is None:
                reply = self._message.binding.wrap_result(answer.packed)
            else:
                reply = self._render(cut_answer(answer.frame, self._message.request))
            self._visit.echo(self._admitted.call, self._message.asked)
            is_sent = self._visit.answer_now(reply)
        except Exception as error:  # noqa: BLE001  the top of a request, as in the face
            self._spawn(self._serve(_fail(error)))
            return
        self._entered.leave()
        if is_sent:
            self._finish()
        else:
            self._spawn(self._send(reply))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        self._calls.spawn(work, self._context)

    def _stop_waiting(self) -> Turn | None:
        """Stops waiting; returns the turn it waited for, if any."""
        turn, self._turn = self._turn, None
        if turn is not None:
            self._calls.operations.waits.discard(self)
        if self._unwatch is not None:
            self._unwatch()
            # The watcher and this object refer to each other.
            self._unwatch = None
        return turn

    def _wait(self, turn: Turn) -> Coroutine[Any, Any, JsonObject]:
        """Waits in a task, for an answer that did not end the run at once."""
        return self._calls.operations.await_answer(
            self._call, self._message.request, turn.accepted, turn.wait(), self._visit.watch
        )

    def _render(self, result: JsonObject) -> HttpReply:
        return self._message.binding.render_result(self._message.asked.write_result(result))

    async def _serve(self, answering: Coroutine[Any, Any, JsonObject]) -> None:
        """Answers with the result of ``answering``."""
        try:
            try:
                result = await answering
            finally:
                self._entered.leave()
            self._visit.echo(self._admitted.call, self._message.asked)
            await self._visit.answer(self._render(result))
        except CallerLeftError:
            self._visit.outcome = "left"
        except Exception as error:  # noqa: BLE001  the top of a request, as in the face
            await self._visit.refuse(self._calls.visits.judge(self._visit, error))
        finally:
            self._finish()

    async def _send(self, reply: HttpReply) -> None:
        try:
            await self._visit.answer(reply)
        finally:
            self._finish()

    def _finish(self) -> None:
        self._calls.finish(self._visit, monotonic() - self._began_s)
        self._calls.operations.waits.present.leave()


async def _fail(failure: Exception) -> JsonObject:
    raise failure
