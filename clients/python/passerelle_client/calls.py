"""Calls in flight: decides after a lost link which calls are sent again and which have an unknown outcome."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

from passerelle.client.items import CallRefused, UnknownOutcome
from passerelle.protocol.frames import Answer, Failure

if TYPE_CHECKING:
    from collections.abc import Callable

    from passerelle.core.wire.json import JsonObject
    from passerelle.protocol.frames import Call


@dataclass(slots=True)
class _Flight:
    call: Call
    result: asyncio.Future[JsonObject]
    sent: bool = False


class CallsInFlight:
    """Calls by id. Ids are never reused, so a late response matches no call."""

    def __init__(self) -> None:
        self._flights: dict[str, _Flight] = {}
        self._count = 0

    def open(self, make_call: Callable[[str], Call]) -> tuple[Call, asyncio.Future[JsonObject]]:
        """Returns a new call, made for a new id, and the future of its result."""
        self._count += 1
        call = make_call(str(self._count))
        result: asyncio.Future[JsonObject] = asyncio.get_running_loop().create_future()
        self._flights[call.id] = _Flight(call, result)
        return call, result

    def forget(self, call: Call) -> None:
        """Drops a call that its caller no longer waits for."""
        self._flights.pop(call.id, None)

    def mark_sent(self, call: Call) -> None:
        """Marks a call as sent: from now on it may have reached the server."""
        flight = self._flights.get(call.id)
        if flight is not None:
            flight.sent = True

    def settle(self, frame: Answer | Failure) -> None:
        """Completes the future of a call with its response."""
        flight = self._flights.pop(frame.id, None)
        if flight is None or flight.result.done():
            return
        if isinstance(frame, Answer):
            flight.result.set_result(frame.data)
        else:
            flight.result.set_exception(
                CallRefused(frame.code, frame.message, frame.retry_s, frame.data or {})
            )

    def cut(self) -> None:
        """The link is lost: fails the calls that were sent without a key with an unknown outcome (CHN-13)."""
        for flight in list(self._flights.values()):
            if flight.sent and flight.call.idem is None:
                self.forget(flight.call)
                if not flight.result.done():
                    flight.result.set_exception(UnknownOutcome(flight.call.method))

    def list_unanswered(self) -> list[Call]:
        """Returns the calls to send over a new link."""
        return [flight.call for flight in self._flights.values()]

    def fail(self, error: Exception) -> None:
        """The client ends: fails every call with ``error``."""
        for flight in self._flights.values():
            if not flight.result.done():
                flight.result.set_exception(error)
        self._flights.clear()
