"""The outcome of an accepted turn, read from the records of its task and thread. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from passerelle.core.errors import NotFound
from passerelle.core.ids import parse_facade
from passerelle.core.session.thread import ThreadRecord
from passerelle.runtime.records.exposures import view_exposure
from passerelle.runtime.records.refusals import make_error

if TYPE_CHECKING:
    from passerelle.core.commands import TurnAccepted
    from passerelle.core.decision import Held
    from passerelle.core.task.record import TaskRecord


def check_owner(record: TaskRecord, owner: str, accepted: TurnAccepted) -> None:
    """Raises NotFound if the task no longer belongs to the owner."""
    if record.owner != owner:
        raise NotFound("task", accepted.facade)


def check_taken(thread: object, turn_id: str) -> None:
    """Raises the recorded error of a message that the agent refused while its task continues."""
    refused = thread.refusals.get(turn_id) if isinstance(thread, ThreadRecord) else None
    if refused is not None:
        raise make_error(refused)


def find_exposure(accepted: TurnAccepted, held: Held) -> Held:
    """The task under the facade id that the caller received; the task may have been retried under a later one."""
    parsed = parse_facade(accepted.facade)
    return (view_exposure(held, parsed[1]) if parsed else None) or held


def is_active(thread: object, turn_id: str) -> bool:
    """Whether the turn has no answer yet."""
    return isinstance(thread, ThreadRecord) and turn_id in thread.active_turns
