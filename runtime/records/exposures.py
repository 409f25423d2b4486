"""Keeps what callers saw of a task when it ended, if the task is retried under another id (LT-12, LT-13).

A task that callers see is frozen when it ends. A retry continues the same local task as its next exposure,
``<task id>~2``; a field of the task's hash keeps the end of the exposure before. A caller that names the earlier
exposure reads it from there, whatever happens to the task later.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from passerelle.core.decision import Held
from passerelle.core.facts import ErrorDetail
from passerelle.core.task.record import TaskRecord
from passerelle.core.task.status import Status
from passerelle.core.wire.codec import from_bytes, to_bytes
from passerelle.core.wire.record import change, record
from passerelle.runtime.records.task_fields import CONTENT


@record
class Frozen:
    """The record members that belong to one exposure, and the content as the hash stored it."""

    status: Status
    status_at: str
    last: int
    generation: int
    shown: bool
    shown_from: int
    shown_to: int
    rejected: bool = False
    status_reason: str | None = None
    ended_at: str | None = None
    last_error: ErrorDetail | None = None
    exposed_from: int | None = None
    content: str | None = None


def name_field(exposure: int) -> str:
    """The field of the task's hash that stores a finished exposure."""
    return f"x{exposure}"


def freeze(state: TaskRecord, fields: Mapping[str, bytes]) -> bytes:
    """The stored form of the current exposure of a task that has ended."""
    content = fields.get(CONTENT)
    return to_bytes(
        Frozen(
            status=state.status,
            status_at=state.status_at,
            last=state.last,
            generation=state.generation,
            shown=state.shown,
            shown_from=state.shown_from,
            shown_to=state.shown_to,
            rejected=state.rejected,
            status_reason=state.status_reason,
            ended_at=state.ended_at,
            last_error=state.last_error,
            exposed_from=state.exposed_from,
            content=content.decode() if content is not None else None,
        )
    )


def view_exposure(held: Held, exposure: int) -> Held | None:
    """A stored task as callers see it under one of its exposures; None if there is no such exposure."""
    state = held.record
    if not isinstance(state, TaskRecord) or exposure == state.exposure:
        return held
    kept = held.fields.get(name_field(exposure))
    if kept is None:
        return None
    frozen = from_bytes(Frozen, kept, newer=True)
    fields = {name: value for name, value in held.fields.items() if name != CONTENT}
    if frozen.content is not None:
        fields[CONTENT] = frozen.content.encode()
    then = change(
        state,
        exposure=exposure,
        status=frozen.status,
        status_at=frozen.status_at,
        status_reason=frozen.status_reason,
        ended_at=frozen.ended_at,
        last=frozen.last,
        last_error=frozen.last_error,
        rejected=frozen.rejected,
        generation=frozen.generation,
        shown=frozen.shown,
        shown_from=frozen.shown_from,
        shown_to=frozen.shown_to,
        exposed_from=frozen.exposed_from,
        current_run_id=None,
        open_actions=(),
        withheld=None,
    )
    return replace(held, record=then, fields=fields)
