"""A message that opens a task, as it came in, and the stored turn that it has led to."""

from __future__ import annotations

from typing import TYPE_CHECKING

from passerelle.core.commands import TurnAccepted
from passerelle.core.ids import TaskId, expose
from passerelle.core.wire.codec import from_bytes
from passerelle.core.wire.record import value
from passerelle.runtime.records.idempotency import TurnReceipt, remember
from passerelle.runtime.records.message_summary import digest_request

if TYPE_CHECKING:
    from collections.abc import Callable

    from passerelle.core.batch import EntityRef, IdempotencyRow, Incarnation
    from passerelle.core.commands import SubmitTurn
    from passerelle.core.decision import Held
    from passerelle.core.principal import Principal
    from passerelle.core.wire.json import JsonObject
    from passerelle.delegation.runs.plan import Delegation
    from passerelle.delegation.runs.templates import TemplatedTurn
    from passerelle.runtime.records.places import Place
    from passerelle.runtime.records.writes import Unread


@value
class TurnRequest:
    """A message that opens a task, as it came in, and how it is taken.

    ``idem`` is the key of its caller under which it is taken once.
    """

    principal: Principal
    command: SubmitTurn
    plan: Delegation
    idem: str | None = None
    known: Held | None = None
    """The thread of the context, where it was read before; it may have changed since."""
    read_options: Callable[[], JsonObject | None] = lambda: None
    """What its request says beside the message, for one that waits."""

    def remember(self, place: Place, turn_id: str, task_id: str) -> IdempotencyRow | None:
        """What a repeat finds under its key; None without one."""
        if self.idem is None:
            return None
        receipt = TurnReceipt(place.session.id, place.thread.id, turn_id, task_id, place.context_id)
        return remember(self.principal, self.idem, digest_request(self.command), receipt)


@value
class OpenedTurn:
    """A stored turn with a new task: what the driver starts from."""

    place: Place
    task: EntityRef
    turn_id: str
    held: dict[EntityRef, Held] | Unread
    driver: Incarnation
    repeated: bool = False
    shown: JsonObject | None = None
    """The Task as callers see it already."""
    templated: TemplatedTurn | None = None
    """How it was rendered, if it was."""
    position: int | None = None
    """Where it waits behind other turns of its context, from 1."""

    def accept(self) -> TurnAccepted:
        """What its caller is told of it."""
        return TurnAccepted(
            session_id=self.place.session.id,
            thread_id=self.place.thread.id,
            turn_id=self.turn_id,
            task_id=self.task.id,
            facade=expose(TaskId(self.task.id), 1),
            context_id=self.place.context_id,
            repeated=self.repeated,
            position=self.position,
        )


def read_task(stored: bytes) -> str:
    """The task of a stored receipt."""
    return from_bytes(TurnReceipt, stored).task_id
