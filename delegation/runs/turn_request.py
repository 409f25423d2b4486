"""A message that opens a task, as received, and the stored turn for it."""

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
    """A message that opens a task, as received, and its plan.

    ``idem`` is the caller's idempotency key.
    """

    principal: Principal
    command: SubmitTurn
    plan: Delegation
    idem: str | None = None
    known: Held | None = None
    """The thread of the context, if it was read before; it may have changed since."""
    read_options: Callable[[], JsonObject | None] = lambda: None
    """Reads the options of its request without the message, for one that waits."""

    def remember(self, place: Place, turn_id: str, task_id: str) -> IdempotencyRow | None:
        """The idempotency row for a repeat; None without a key."""
        if self.idem is None:
            return None
        receipt = TurnReceipt(place.session.id, place.thread.id, turn_id, task_id, place.context_id)
        return remember(self.principal, self.idem, digest_request(self.command), receipt)


@value
class OpenedTurn:
    """A stored turn with a new task, for its driver."""

    place: Place
    task: EntityRef
    turn_id: str
    held: dict[EntityRef, Held] | Unread
    driver: Incarnation
    repeated: bool = False
    shown: JsonObject | None = None
    """The Task, if callers see it already."""
    templated: TemplatedTurn | None = None
    """The rendered turn, if it was rendered."""
    position: int | None = None
    """Its position behind other turns of its context, from 1."""

    def accept(self) -> TurnAccepted:
        """The receipt for its caller."""
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
