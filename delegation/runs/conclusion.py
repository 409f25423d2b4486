"""What an append of a run contains with its facts: fence, due rows, targets, the content of an ended task. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import orjson

from passerelle.a2a_mapping.long_task import write_task
from passerelle.core.batch import (
    DueChange,
    EntityRef,
    Fence,
    IdempotencyRow,
    Incarnation,
    RunMove,
    TargetChange,
)
from passerelle.core.task.record import TaskRecord
from passerelle.core.task.status import ENDED, UNDRIVEN
from passerelle.delegation.runs.failure import name_row
from passerelle.delegation.runs.holds import QUEUED
from passerelle.delegation.runs.limits import drop_limits
from passerelle.runtime.records.blob_overflow import CAP
from passerelle.runtime.records.task_fields import CONTENT, IN_BLOB, IN_ENTRY, IN_PIECES, OWNER
from passerelle.runtime.records.writes import AppendOptions
from passerelle.webhooks.push_configs import end_targets

if TYPE_CHECKING:
    from collections.abc import Mapping

    from passerelle.core.decision import Held
    from passerelle.delegation.runs.draft import DecisionDraft

_NOTICE_TTL_MS: Final = 600_000


def complete_terms(
    draft: DecisionDraft,
    terms: AppendOptions,
    before: TaskRecord,
    held: Mapping[EntityRef, Held],
    driver: Incarnation | None,
) -> AppendOptions:
    """The full options of an append: ``terms``, and what follows from the facts of the draft.

    ``before`` is the stored task, ``held`` what the append compares, ``driver`` the fence, if there is one.
    """
    ref, record = draft.context.task, draft.record
    was_over = before.status in UNDRIVEN
    leaves = record.status in UNDRIVEN and not was_over
    ends = record.status in ENDED and before.status not in ENDED
    due = (*terms.due, *draft.due)
    line_row = f"{QUEUED}:{ref.id}"
    if ends and before.queued is not None and all(row.member != line_row for row in due):
        # Its row takes it out of the queue, unless the command that ends it does so itself.
        due = (*due, DueChange(line_row, draft.decision.now_ms))
    if leaves:
        due = (*due, *drop_limits(ref.id, record.attempts[-1] if record.attempts else None))
    if ends:
        due = (*due, *_list_ends(draft, before))
    run = before.attempts[-1] if before.attempts else None
    leaving = (
        (RunMove(run.run_id, ref.id, driver, enters=False),)
        if leaves and run is not None and driver is not None
        else ()
    )
    return AppendOptions(
        fence=None if was_over or driver is None else Fence(ref.id, driver),
        claim=terms.claim,
        runs=(*terms.runs, *leaving),
        due=due,
        targets=_end_targets(draft, held) if ends else (),
        idem=_find_idem(draft, terms, held),
    )


def is_waited_for(record: TaskRecord) -> bool:
    """Whether a task has ended that other tasks wait for."""
    return record.status in ENDED and any(edge.is_waited_for for edge in record.relationships)


def _list_ends(draft: DecisionDraft, before: TaskRecord) -> tuple[DueChange, ...]:
    """The due rows that an end drops, and those it sets for hooks and waiting tasks."""
    task_id, now_ms = draft.context.task.id, draft.decision.now_ms
    due = [DueChange(f"cancel:{task_id}", None)]
    if draft.context.find_rules().hooks_at("on_stop"):
        due.append(DueChange(f"stop:{task_id}", now_ms))
    if is_waited_for(draft.record):
        due.append(DueChange(f"unblock:{task_id}", now_ms))
    if before.run is None:
        due.append(DueChange(name_row(task_id), None))
    return tuple(due)


def _end_targets(draft: DecisionDraft, held: Mapping[EntityRef, Held]) -> tuple[TargetChange, ...]:
    """Ends the webhook targets of a task that was never shown: nothing else would ever wake them."""
    if draft.record.shown or any(event.fact.facade for event in draft.decision.events):
        return ()
    return end_targets(draft.record, held[draft.context.task].fields)


def _find_idem(
    draft: DecisionDraft, terms: AppendOptions, held: Mapping[EntityRef, Held]
) -> IdempotencyRow | None:
    """A row of its own for an append that changes no entity: it has no version that would detect a repeat."""
    decision = draft.decision
    if terms.idem or any(decision.state(ref) is not one.record for ref, one in held.items()):
        return terms.idem
    first = decision.events[0].event_id if decision.events else draft.context.mint("op")
    return IdempotencyRow(key=first, digest=first, result=b"", ttl_ms=_NOTICE_TTL_MS)


def keep_content(draft: DecisionDraft, before: TaskRecord) -> None:
    """Removes the owner of a run that is over; stores the content of an ended task, so that it is not folded again."""
    ref, content = draft.context.task, draft.context.content
    if draft.record.status in UNDRIVEN and before.status not in UNDRIVEN:
        draft.decision.set_field(ref, OWNER, None)
    if draft.record.status not in ENDED or before.status in ENDED:
        return
    if content is None or not draft.record.shown:
        return
    if draft.is_large:
        pieces = draft.spill.keep_long(lambda: write_task(content))
        kept = b"%b%d:%b" % (IN_PIECES, pieces.size or 0, (pieces.blob or "").encode())
    else:
        kept = _place_content(draft, orjson.dumps(content))
    draft.decision.set_field(ref, CONTENT, kept)


def _place_content(draft: DecisionDraft, packed: bytes) -> bytes:
    """The value of the content field of an ended task."""
    if draft.whole:
        return IN_ENTRY
    if len(packed) <= CAP:
        return packed
    return IN_BLOB + (draft.spill.keep(packed).blob or "").encode()
