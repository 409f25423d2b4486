"""A message comes in: where it belongs, and the task that it opens, tried again where others change its context."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from passerelle.core.batch import EntityKind, EntityRef
from passerelle.core.errors import Conflict, InvalidInput, NotFound
from passerelle.core.ids import read_shard
from passerelle.core.session import SessionRecord
from passerelle.core.thread import ThreadRecord
from passerelle.delegation.runs.turn_opening import Opened, Opening
from passerelle.runtime.records.places import Place, list_places, mint_place
from passerelle.runtime.records.writes import MAX_TRIES, Writes

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from passerelle.core import task_requests
    from passerelle.core.commands import SubmitTurn
    from passerelle.core.decision import Held
    from passerelle.core.ports.blobs import Blobs
    from passerelle.core.ports.projections import IndexRow
    from passerelle.core.principal import Principal
    from passerelle.delegation.runs.plan import Delegation
    from passerelle.webhooks.push_configs import PushConfigs


@dataclass(slots=True)
class Turns:
    """Opens turns with new tasks."""

    writes: Writes
    blobs: Blobs
    push_configs: PushConfigs
    doubt: Callable[[EntityRef], None] = lambda _task: None
    """Told of a task that may have been stored, with this instance as its driver, though its caller got an error."""
    list_row: Callable[[IndexRow], Awaitable[None]] | None = None
    """Writes an owner-index row at once, for a task that callers see from its first append on."""

    async def locate(
        self, principal: Principal, command: SubmitTurn | task_requests.CreateTask, idem: str | None
    ) -> tuple[Place, dict[EntityRef, Held]]:
        """The place of the message, with its thread and session as they are stored.

        Raises:
            NotFound: a session that is named and is not the caller's.
            InvalidInput: a context that belongs to another session than the one named (ID-3).
        """
        if command.session_id is not None and read_shard(command.session_id) is None:
            raise NotFound("session", command.session_id)
        if command.context_id is None:
            place = mint_place(principal, self.writes.ids, idem, command.session_id)
            if command.session_id is None:
                return place, {}
            held = await self.writes.load([place.session])
            _check_session(held[place.session], principal, command.session_id)
            return place, held
        for place in list_places(principal, command.context_id):
            held = await self.writes.load([place.thread])
            thread = held[place.thread].record
            if isinstance(thread, ThreadRecord):
                return await self._known(place, held, thread, command)
        place = list_places(principal, command.context_id)[-1]
        if command.session_id is not None:
            raise InvalidInput("contextId", "a new context in a session is made by the gateway")
        return place, await self.writes.load([place.thread, place.session])

    async def _known(
        self,
        place: Place,
        held: dict[EntityRef, Held],
        thread: ThreadRecord,
        command: SubmitTurn | task_requests.CreateTask,
    ) -> tuple[Place, dict[EntityRef, Held]]:
        if command.session_id not in {None, thread.session_id}:
            raise InvalidInput("sessionId", "the context belongs to another session")
        session = EntityRef(EntityKind.SESSION, thread.session_id)
        return Place(place.shard, place.context_id, place.thread, session), held

    async def open(
        self, principal: Principal, command: SubmitTurn, idem: str | None, plan: Delegation
    ) -> Opened:
        """Accepts the message as a new task, in one append.

        Raises:
            StoreUnavailable: nothing is known to be written, and no peer was called.
            IdempotencyConflict: the key came with another request before.
        """
        for tries in range(MAX_TRIES):
            place, held = await self.locate(principal, command, idem)
            opening = Opening(self, principal, command, plan, place, held)
            outcome = await opening.append(idem)
            if isinstance(outcome, Opened):
                return outcome
            await self.writes.step_back(tries)
        raise Conflict("the context was changed by others again and again; try once more")


def _check_session(held: Held, principal: Principal, session_id: str) -> None:
    session = held.record
    if not isinstance(session, SessionRecord) or session.owner != principal.key:
        raise NotFound("session", session_id)
