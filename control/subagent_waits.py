"""Waits until any or all of some subagents are idle, or until a timeout (CMD-19).

A wait is a read: it follows the streams of their sessions, and checks again after each event.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from dataclasses import field
from typing import TYPE_CHECKING

from passerelle.channels.hub import Start
from passerelle.channels.task_follower import take_step
from passerelle.channels.views import PlainView
from passerelle.core.frozen import frozen
from passerelle.core.ports.log import StreamKind, StreamRef
from passerelle.core.subagent.requests import SubagentsWaited
from passerelle.core.wire.codec import to_wire

if TYPE_CHECKING:
    from passerelle.channels.hub import Hub
    from passerelle.channels.position import Position
    from passerelle.control.subagents import SubagentReads
    from passerelle.core.principal import Principal
    from passerelle.core.read_models.subagents import Subagent
    from passerelle.core.subagent.requests import WaitSubagents
    from passerelle.core.wire.json import JsonObject


@frozen
class SubagentWaits:
    """Waits on behalf of callers."""

    reads: SubagentReads
    hub: Hub
    _leaving: asyncio.Event = field(default_factory=asyncio.Event)

    def drain(self) -> None:
        """Releases all current and future waits; they return the current state."""
        self._leaving.set()

    async def wait(self, principal: Principal, query: WaitSubagents) -> JsonObject:
        """The state of the subagents once enough of them are idle, or after the timeout.

        Raises:
            NotFound: one of them is not a subagent of the caller.
        """
        until_s = asyncio.get_running_loop().time() + query.timeout_ms / 1000
        found = await self._read(principal, query)
        if _is_over(found, query) or not query.timeout_ms:
            return _render(found, query)
        async with AsyncExitStack() as stack:
            sessions = dict.fromkeys(one.parent.session_id for one in found)
            positions = [
                await stack.enter_async_context(
                    self.hub.open(StreamRef(StreamKind.SESSION, name), PlainView(), Start.LIVE)
                )
                for name in sessions
            ]
            while True:
                found = await self._read(principal, query)
                if _is_over(found, query) or not await self._follow(positions, until_s):
                    return _render(found, query)

    async def _read(self, principal: Principal, query: WaitSubagents) -> list[Subagent]:
        names = dict.fromkeys(query.subagent_ids)
        return [(await self.reads.find(principal, name))[0] for name in names]

    async def _follow(self, positions: list[Position], until_s: float) -> bool:
        """Waits for an event in one of the sessions; returns False when the wait should end."""
        left_s = until_s - asyncio.get_running_loop().time()
        if left_s <= 0 or self._leaving.is_set():
            return False
        steps = [asyncio.create_task(take_step(one), name="subagent.wait") for one in positions]
        leaving = asyncio.create_task(self._leaving.wait(), name="subagent.leaving")
        try:
            await asyncio.wait(
                (*steps, leaving), timeout=left_s, return_when=asyncio.FIRST_COMPLETED
            )
            done = [one for one in steps if one.done()]
            return bool(done) and all([await one is not None for one in done])
        finally:
            for one in (*steps, leaving):
                one.cancel()
            await asyncio.wait((*steps, leaving))


def _list_settled(found: list[Subagent]) -> tuple[str, ...]:
    return tuple(one.subagent_id for one in found if one.state != "running")


def _is_over(found: list[Subagent], query: WaitSubagents) -> bool:
    settled = len(_list_settled(found))
    return settled > 0 if query.mode == "any" else settled == len(found)


def _render(found: list[Subagent], query: WaitSubagents) -> JsonObject:
    waited = SubagentsWaited(tuple(found), _list_settled(found), not _is_over(found, query))
    return to_wire(waited)
