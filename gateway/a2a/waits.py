"""Callers that wait for something: how long they may, whether they still have the right, and how they are let go.

The right is asked for as at the door, while a stream is open. A key that is withdrawn, a token that expires, a grant
that is taken away: a stream that was opened before ends with the error that would be the answer now.

A caller that goes away ends its own waiting and nothing else; a shutdown ends everybody's in good order. Commands
themselves are never cut: half of one could be stored and not begun.
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
    """What a caller showed, and what it was let in for."""

    authenticator: Authenticator
    shown: Credentials
    principal: Principal
    agent: str
    method: Method

    async def judge(self) -> CallerError | None:
        """Why it has to go; None also while nobody can tell."""
        try:
            now = await self.authenticator.authenticate(self.shown)
            if now.key != self.principal.key:
                raise Unauthenticated("the credential belongs to another principal now")
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
"""How long a caller that is told to go may still be served what it waits for."""


class ServedRequests:
    """Requests that are served now: ``with`` this object one more is."""

    __slots__ = ("_count", "_idle")

    def __init__(self) -> None:
        self._count = 0
        self._idle = asyncio.Event()

    def enter(self) -> None:
        """One more, until it leaves."""
        self._count += 1

    def leave(self) -> None:
        """It has its answer."""
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
    """One caller that waits."""

    @property
    def judge(self) -> Judge | None:
        """Says whether it still has the right to what it waits for."""
        ...

    def end(self, cause: PasserelleError) -> None:
        """Lets it go, with an error for an answer; nothing where it waits no more."""
        ...


class _Wait:
    """One caller's waiting. It is ended as ``asyncio.timeout`` ends a body: by a cancellation that is taken back."""

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
        # Nothing waits outside of a task.
        self._task = task = cast("asyncio.Task[object]", asyncio.current_task())
        self._cancelling = task.cancelling()
        self._waits.add(self)
        self._unwatch = self._watch(self.leave)

    def __exit__(self, kind: type[BaseException] | None, *_raised: object) -> None:
        self._waits.discard(self)
        self._unwatch()
        # It knows us, as we know it: who is through goes at once, and not with the cycle collector.
        del self._unwatch
        if self.cause is None or self._cut is None:
            return
        self._cut.cancel()
        # Who was cancelled by somebody else meanwhile stays cancelled.
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
    """All that wait now."""

    def __init__(self, recheck_s: float = RECHECK_S) -> None:
        self._recheck_s = recheck_s
        self._context = copy_context()
        """Of nobody's request: the timer would keep that alive."""
        self._timer: asyncio.TimerHandle | None = None
        self._rechecks: asyncio.Task[None] | None = None
        self._open: set[Wait] = set()
        self.present: Final = ServedRequests()
        """Whoever serves a request does so ``with`` this, so that a drain waits for its answer."""
        self._draining = False

    def hold(self, watch: Watch, judge: Judge | None = None) -> AbstractContextManager[None]:
        """Lets the body wait as long as the caller is there, may be here, and this instance goes on.

        ``judge`` is asked now and then whether the caller still has the right to what it waits for.

        Raises:
            CallerLeftError: the caller closed its connection.
            Draining: this instance shuts down.
            Unauthenticated, Forbidden, NotFound: what ``judge`` said.
        """
        return _Wait(self, watch, judge)

    def add(self, wait: Wait) -> None:
        """One more waits; during a drain not for long."""
        self._open.add(wait)
        if self._draining:
            wait.end(_say_draining())
        elif self._timer is None:
            self._arm()

    def discard(self, wait: Wait) -> None:
        """It waits no more."""
        self._open.discard(wait)

    async def drain(self) -> None:
        """Ends every wait, now and later, and returns when every request has its answer."""
        self._draining = True
        for wait in list(self._open):
            wait.end(_say_draining())
        for recheck in (self._timer, self._rechecks):
            if recheck is not None:
                recheck.cancel()
        await self.present.wait_idle()

    def _arm(self) -> None:
        """One look in a while at everybody who waits: a timer for each of them would cost more than the looks do."""
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
                # A judge takes its time, and who has left meanwhile has nothing any more that could be judged.
                if wait.judge is None or wait not in self._open:
                    continue
                if (refusal := await wait.judge()) is not None:
                    wait.end(refusal)
        finally:
            self._arm()


def _say_draining() -> Draining:
    return Draining("this instance is shutting down", retry_after_s=1)
