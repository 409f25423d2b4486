"""Waiting callers: how long they wait, whether they still have the right, and how their waits end.

While a stream is open, the caller's right is checked again like at the start. After a key is revoked, a token expires
or a grant is removed, the stream ends with the error that a new request would get.

A caller that leaves ends only its own wait; a shutdown ends all waits in good order. Commands are never cut: half of
one could be stored and not started.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextvars import copy_context
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias, cast

from passerelle.core.errors import CallerError, Draining, NotFound, RemoteError, Unauthenticated
from passerelle.core.wire.record import value
from passerelle.gateway.a2a.http_request import CallerLeftError
from passerelle.gateway.a2a.operations import SCOPES
from passerelle.runtime.common.calls import require_operation, require_scope

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from passerelle.a2a_mapping.rpc import Method
    from passerelle.core.commands import Authenticator
    from passerelle.core.credentials import Credentials
    from passerelle.core.errors import PasserelleError
    from passerelle.core.principal import Principal
    from passerelle.gateway.a2a.http_request import Watch


@value
class AdmittedCaller:
    """The credentials of a caller, and what it was admitted for."""

    authenticator: Authenticator
    shown: Credentials
    principal: Principal
    agent: str
    method: Method

    async def judge(self) -> CallerError | None:
        """The reason why it has to go; None also while that cannot be checked."""
        try:
            now = await self.authenticator.authenticate(self.shown)
            if now.key != self.principal.key:
                raise Unauthenticated("the credential now belongs to another principal")
            if not now.sees(self.agent):
                raise NotFound("agent", self.agent)
            require_scope(now, SCOPES[self.method])
            require_operation(now, self.agent, self.method)
        except CallerError as error:
            return error
        except RemoteError:
            return None
        return None


Judge: TypeAlias = Callable[[], Awaitable[CallerError | None]]

RECHECK_S: Final = 5.0
"""How long a caller that lost its right may still be served."""


class ServedRequests:
    """Counts the requests in progress: ``with`` this object adds one."""

    __slots__ = ("_count", "_idle")

    def __init__(self) -> None:
        self._count = 0
        self._idle = asyncio.Event()

    def enter(self) -> None:
        """Adds one, until it leaves."""
        self._count += 1

    def leave(self) -> None:
        """A request has its answer."""
        self._count -= 1
        if self._count == 0:
            self._idle.set()

    def __enter__(self) -> None:
        self.enter()

    def __exit__(self, *_raised: object) -> None:
        self.leave()

    async def wait_idle(self) -> None:
        """Returns when every request has its answer."""
        while self._count:
            self._idle.clear()
            await self._idle.wait()


class Wait(Protocol):
    """One waiting caller."""

    @property
    def judge(self) -> Judge | None:
        """Checks whether it still has the right to what it waits for."""
        ...

    def end(self, cause: PasserelleError) -> None:
        """Ends the wait with an error as the answer; does nothing if it has ended."""
        ...


class _Wait:
    """One caller's wait. It ends like the block of ``asyncio.timeout``: by a cancellation that is taken back."""

    __slots__ = (
        "_cancelling",
        "_cut",
        "_is_cut",
        "_task",
        "_unwatch",
        "_waits",
        "_watch",
        "cause",
        "judge",
    )

    def __init__(self, waits: Waits, watch: Watch, judge: Judge | None) -> None:
        self._waits = waits
        self._watch = watch
        self.judge: Final = judge
        self.cause: CallerLeftError | PasserelleError | None = None
        self._cut: asyncio.Handle | None = None
        self._is_cut = False

    def __enter__(self) -> None:
        # Only a task can wait.
        self._task = task = cast("asyncio.Task[object]", asyncio.current_task())
        self._cancelling = task.cancelling()
        self._waits.add(self)
        self._unwatch = self._watch(self.leave)

    def __exit__(self, kind: type[BaseException] | None, *_raised: object) -> None:
        self._waits.discard(self)
        self._unwatch()
        # A reference cycle: without this the object would wait for the garbage collector.
        del self._unwatch
        if self.cause is None or self._cut is None:
            return
        self._cut.cancel()
        # A task that something else cancelled meanwhile stays cancelled.
        if (
            self._is_cut
            and self._task.uncancel() <= self._cancelling
            and kind is asyncio.CancelledError
        ):
            raise self.cause from None

    def leave(self) -> None:
        self.end(CallerLeftError())

    def end(self, cause: CallerLeftError | PasserelleError) -> None:
        if self.cause is None:
            self.cause = cause
            self._cut = asyncio.get_running_loop().call_soon(self._cancel)

    def _cancel(self) -> None:
        self._is_cut = True
        self._task.cancel()


class Waits:
    """All current waits."""

    def __init__(self, recheck_s: float = RECHECK_S) -> None:
        self._recheck_s = recheck_s
        self._context = copy_context()
        """Not a request's context: the timer would keep it alive."""
        self._timer: asyncio.TimerHandle | None = None
        self._rechecks: asyncio.Task[None] | None = None
        self._open: set[Wait] = set()
        self.present: Final = ServedRequests()
        """Serve a request ``with`` this, so that a drain waits for its answer."""
        self._draining = False

    def hold(self, watch: Watch, judge: Judge | None = None) -> AbstractContextManager[None]:
        """Lets the block wait as long as the caller is connected, has the right, and this instance is not draining.

        ``judge`` is called now and then to check whether the caller still has the right to what it waits for.

        Raises:
            CallerLeftError: the caller closed its connection.
            Draining: this instance shuts down.
            Unauthenticated, Forbidden, NotFound: the result of ``judge``.
        """
        return _Wait(self, watch, judge)

    def add(self, wait: Wait) -> None:
        """Adds a wait; ends it at once during a drain."""
        self._open.add(wait)
        if self._draining:
            wait.end(_make_draining_error())
        elif self._timer is None:
            self._start_timer()

    def discard(self, wait: Wait) -> None:
        """Removes a wait."""
        self._open.discard(wait)

    async def drain(self) -> None:
        """Ends every wait, now and later, and returns when every request has its answer."""
        self._draining = True
        for wait in list(self._open):
            wait.end(_make_draining_error())
        for recheck in (self._timer, self._rechecks):
            if recheck is not None:
                recheck.cancel()
        await self.present.wait_idle()

    def _start_timer(self) -> None:
        """Starts one timer that checks all waits: one for each of them would cost more than the checks do."""
        if self._timer is None and not self._draining:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(
                self._recheck_s, self._begin_recheck, context=self._context
            )

    def _begin_recheck(self) -> None:
        self._timer = None
        if self._open:
            self._rechecks = asyncio.create_task(self._recheck())

    async def _recheck(self) -> None:
        try:
            for wait in list(self._open):
                # A judge takes time, and a wait may have ended meanwhile.
                if wait.judge is None or wait not in self._open:
                    continue
                if (refusal := await wait.judge()) is not None:
                    wait.end(refusal)
        finally:
            self._start_timer()


def _make_draining_error() -> Draining:
    return Draining("this instance is shutting down", retry_after_s=1)
