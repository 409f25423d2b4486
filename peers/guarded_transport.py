"""One interface of a peer with its transport, and the circuit breaker that stops calls to a failing one."""

from __future__ import annotations

from contextlib import aclosing
from http import HTTPStatus
from typing import TYPE_CHECKING

import structlog

from passerelle.core.peer import Answered, RefusedByPeer, Unknown, Unreached
from passerelle.peers.call import SENDS
from passerelle.runtime.common.breaker import HEALTHY, step

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable

    from passerelle.core.peer import PeerOutcome, StreamOutcome
    from passerelle.core.ports.chance import Clock
    from passerelle.peers.call import PeerCall, Transport
    from passerelle.peers.interface import Interface
    from passerelle.runtime.common.breaker import BreakerMode, Signal


class GuardedTransport:
    """Calls over one interface. ``probe`` sends a harmless request to the peer, and returns whether it answered."""

    def __init__(
        self,
        peer: str,
        interface: Interface,
        transport: Transport,
        probe: Callable[[], Awaitable[bool]],
        clock: Clock,
    ) -> None:
        self._peer = peer
        self._log = structlog.get_logger()
        self.interface = interface
        self._transport = transport
        self._probe = probe
        self._clock = clock
        self._breaker = HEALTHY

    @property
    def mode(self) -> BreakerMode:
        """The breaker's mode."""
        return self._breaker.mode

    @property
    def admits(self) -> bool:
        """Whether a send may be tried now."""
        return self._breaker is HEALTHY or self._breaker.admits(self._clock.now_ms())

    async def call(self, call: PeerCall) -> PeerOutcome:
        if (
            self._breaker is not HEALTHY
            and (rejected := await self._check_breaker(call)) is not None
        ):
            return rejected
        was_closed = self._breaker.mode == "closed"
        outcome = await self._transport.call(self.interface, call)
        if self._breaker is not HEALTHY or not isinstance(outcome, Answered):
            self._record(call, outcome, was_closed=was_closed)
        return outcome

    async def follow(self, call: PeerCall) -> AsyncGenerator[StreamOutcome, None]:
        rejected = await self._check_breaker(call)
        if rejected is not None:
            yield rejected
            return
        was_closed, has_begun = self._breaker.mode == "closed", False
        async with aclosing(self._transport.follow(self.interface, call)) as outcomes:
            async for outcome in outcomes:
                if not has_begun or _is_failure(outcome):
                    self._record(call, outcome, was_closed=was_closed)
                has_begun = True
                passed = [outcome]
                del outcome
                yield passed.pop()

    async def _check_breaker(self, call: PeerCall) -> Unreached | None:
        """A send must not be the probe: while the breaker is open, a harmless request is sent first."""
        if self._breaker.mode == "closed" or call.operation not in SENDS:
            return None
        now_ms = self._clock.now_ms()
        if self._breaker.admits(now_ms):
            self._breaker = step(self._breaker, "asked", now_ms)
            if await self._probe():
                return None
            self._breaker = step(self._breaker, "failed", self._clock.now_ms())
        reason = f"{self.interface.choice} failed repeatedly and is paused for a while"
        return Unreached(reason, self._breaker.wait_s(self._clock.now_ms()), "breaker")

    def _log_change(self, was: BreakerMode) -> None:
        """Logs once each time the breaker opens or closes."""
        now = self._breaker.mode
        if (now == "closed") == (was == "closed"):
            return
        log = self._log.bind(peer=self._peer, interface=self.interface.choice)
        if now == "closed":
            log.info("peer.breaker_closed")
        else:
            log.warning("peer.breaker_open", pause_ms=self._breaker.pause_ms)

    def _record(self, call: PeerCall, outcome: StreamOutcome, *, was_closed: bool) -> None:
        if _is_failure(outcome):
            signal: Signal = "failed"
        else:
            signal = "succeeded" if was_closed or call.operation in SENDS else "answered"
        was = self._breaker.mode
        self._breaker = step(self._breaker, signal, self._clock.now_ms())
        self._log_change(was)


def _is_failure(outcome: StreamOutcome) -> bool:
    """Whether the connection to the agent failed.

    An agent that answers with an A2A error is reachable: that its program has raised is one as well, as HTTP 500 with
    that error, as UNKNOWN of gRPC with the agent's text, or as a stream of 0.3 that breaks off.
    """
    match outcome:
        case Unreached(why="absent" | "lease") | Unknown(gave_way=True) | Unknown(had_begun=True):
            return False
        case Unknown(message=text):
            return not text
        case Unreached():
            return True
        case RefusedByPeer(http_status=HTTPStatus.INTERNAL_SERVER_ERROR, is_bare=is_bare):
            return is_bare
        case RefusedByPeer(http_status=status):
            return status >= HTTPStatus.INTERNAL_SERVER_ERROR
        case _:
            return False
