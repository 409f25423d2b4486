"""Calls in flight: which are sent again over the next link, and which have an outcome that nobody knows."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

from passerelle.client.items import CallRefused, UnknownOutcome
from passerelle.protocol.frames import Answer, Call, Failure

if TYPE_CHECKING:
    from passerelle.core.wire.json import JsonObject


@dataclass(slots=True)
class _Flight:
    call: Call
    result: asyncio.Future[JsonObject]
    sent: bool = False


class CallsInFlight:
    """Calls by id; ids are never used twice, so a late answer finds nobody."""

    def __init__(self) -> None:
        self._flights: dict[str, _Flight] = {}
        self._count = 0

    def open(
        self,
        method: str,
        data: JsonObject,
        idem: str | None,
        to: str | None = None,
        headers: JsonObject | None = None,
    ) -> tuple[Call, asyncio.Future[JsonObject]]:
        """A new call and the future of its result; ``to`` is the agent that an agent calls."""
        self._count += 1
        call = Call(str(self._count), method, idem, data, to, headers=headers)
        result: asyncio.Future[JsonObject] = asyncio.get_running_loop().create_future()
        self._flights[call.id] = _Flight(call, result)
        return call, result

    def forget(self, call: Call) -> None:
        """Nobody waits for it any more."""
        self._flights.pop(call.id, None)

    def mark_sent(self, call: Call) -> None:
        """It may have reached the server from now on."""
        flight = self._flights.get(call.id)
        if flight is not None:
            flight.sent = True

    def settle(self, frame: Answer | Failure) -> None:
        """Hands an answer to whoever waits for it."""
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
        """The link was lost: a call without a key that was sent has an unknown outcome (CHN-13)."""
        for flight in list(self._flights.values()):
            if flight.sent and flight.call.idem is None:
                self.forget(flight.call)
                if not flight.result.done():
                    flight.result.set_exception(UnknownOutcome(flight.call.method))

    def list_unanswered(self) -> list[Call]:
        """What has to be sent over a new link."""
        return [flight.call for flight in self._flights.values()]

    def fail(self, error: Exception) -> None:
        """The client ends: everybody who waits gets ``error``."""
        for flight in self._flights.values():
            if not flight.result.done():
                flight.result.set_exception(error)
        self._flights.clear()
