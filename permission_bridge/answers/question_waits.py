"""A question whose reader waits for what becomes of it: one long poll in place of many short ones.

The wait is no truth of its own: it begins after the stream is listened to, and every wake leads to a fresh read. A
reader who leaves, or whom the gateway sends away because it stops, has decided nothing (I6).
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from passerelle.channels.following import take_step
from passerelle.channels.hub import Start
from passerelle.channels.views import PlainView, TaskView
from passerelle.core.ports.log import StreamKind, StreamRef
from passerelle.permission_bridge.answers.actions import find_record

if TYPE_CHECKING:
    from passerelle.channels.hub import Hub
    from passerelle.channels.position import Position
    from passerelle.core.commands import GetAction
    from passerelle.core.principal import Principal
    from passerelle.core.wire.json import JsonObject
    from passerelle.permission_bridge.answers.actions import Actions


@dataclass(frozen=True, slots=True)
class QuestionWaits:
    """Reads questions, now or after their next change."""

    actions: Actions
    hub: Hub
    _leaving: asyncio.Event = field(default_factory=asyncio.Event)

    def drain(self) -> None:
        """Everybody who waits, or would from now on, is told how it stands."""
        self._leaving.set()

    async def read(self, principal: Principal, query: GetAction) -> JsonObject:
        """The view of a question; with ``wait_s`` once it is another than ``rev``, or has waited for so long.

        Without ``rev`` it is the revision that stands there when the wait begins. A question that has ended is
        never waited for.

        Raises:
            NotFound: no question of the caller.
            StoreUnavailable: nobody knows where it stands.
        """
        view = await self.actions.read(principal, query.action_id)
        known = query.rev or view["rev"]
        if query.wait_s == 0 or not _stands(view, known):
            return view
        record = find_record(await self.actions.load(query.action_id), query.action_id)
        until_s = asyncio.get_running_loop().time() + query.wait_s
        stream = StreamRef(StreamKind.SESSION, record.scope.session_id)
        shown = TaskView(task) if (task := record.scope.task_id) else PlainView()
        async with self.hub.open(stream, shown, Start.LIVE) as position:
            while True:
                view = await self.actions.read(principal, query.action_id)
                if not _stands(view, known) or not await self._wait(position, until_s):
                    return view

    async def _wait(self, position: Position, until_s: float) -> bool:
        """Until something is stored that may concern the question; False when nobody should wait any longer."""
        step = asyncio.create_task(take_step(position), name="question.wait")
        leaving = asyncio.create_task(self._leaving.wait())
        left_s = until_s - asyncio.get_running_loop().time()
        try:
            await asyncio.wait(
                (step, leaving), timeout=max(left_s, 0), return_when=asyncio.FIRST_COMPLETED
            )
            # After a gap the position ends; how the question stands is read from its own record.
            return step.done() and await step is not None
        finally:
            step.cancel()
            leaving.cancel()


def _stands(view: JsonObject, known: object) -> bool:
    return view["state"] == "pending" and view["rev"] == known
