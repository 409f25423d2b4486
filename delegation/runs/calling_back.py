"""A peer that calls back: told where to with the message, or later, once it is not followed by a stream any more.

A stream brings everything at once, so a peer that is streamed from is not asked to call back as well: it is told where
to when its stream is gone. Whoever takes a run over finds what its peer was told.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from passerelle.core.errors import PasserelleError
from passerelle.core.peer import Answered, Refused

if TYPE_CHECKING:
    from passerelle.core.json import JsonObject
    from passerelle.core.peer import Peer
    from passerelle.core.task_record import TaskRecord
    from passerelle.delegation.runs.callbacks import Callbacks


@dataclass(slots=True)
class CallingBack:
    """What one run has arranged with its peer; ``is_agreed``: the peer was told where to call."""

    callbacks: Callbacks
    peer: Peer
    is_agreed: bool = False
    _is_tried: bool = False

    async def offer(self, record: TaskRecord) -> JsonObject | None:
        """The push configuration that goes along with a message; without, the peer is asked all the same."""
        run = record.run
        if run is None or run.delivery_mechanism == "streaming":
            return None
        config = await self._make(record)
        self.is_agreed = config is not None
        return config

    async def agree(self, record: TaskRecord) -> None:
        """Tells the peer of a run where to call, once: one that takes no such request is asked as before."""
        run = record.run
        if self._is_tried or self.is_agreed or run is None or run.remote_task_id is None:
            return
        self._is_tried = True
        if not await self._is_able():
            return
        if await self._is_known(run.run_id):
            self.is_agreed = True
            return
        config = await self._make(record)
        if config is None:
            return
        outcome = await self.peer.ask_for_news(run.remote_task_id, config)
        self.is_agreed = isinstance(outcome, Answered)
        # One that could not be reached, or has no time now, is told at the next look.
        self._is_tried = isinstance(outcome, Answered | Refused)

    async def _is_able(self) -> bool:
        try:
            return (await self.peer.describe()).push
        except PasserelleError:
            return False

    async def _is_known(self, run_id: str) -> bool:
        try:
            return await self.callbacks.is_offered(run_id)
        except PasserelleError:
            return False

    async def _make(self, record: TaskRecord) -> JsonObject | None:
        try:
            return await self.callbacks.offer(record, await self.peer.describe())
        except PasserelleError:
            return None
