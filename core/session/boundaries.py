"""Boundaries of a thread: ends of turns, for a rollback (EXT-11) or a summary (EVC-13).

Rolled back content stays stored. The thread's state is then the fold of its facts without those of the rolled back
tasks, with one exception: no agent can forget a message, so agents that received rolled back messages get a new context
from the next turn on.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Final, assert_never

from passerelle.core.errors import InvalidInput, UnsupportedOperation
from passerelle.core.events import Event, Fact
from passerelle.core.facts import CompactedTurns, Ref, Scope
from passerelle.core.frozen import frozen
from passerelle.core.payloads.context import CompactionCompleted, CompactionStarted
from passerelle.core.payloads.history import (
    HistoryReconstructed,
    RollbackCompleted,
    RollbackStarted,
    ThreadState,
)
from passerelle.core.payloads.runtime import SnapshotUpdated
from passerelle.core.wire.codec import to_bytes
from passerelle.core.wire.record import change, record

if TYPE_CHECKING:
    from passerelle.core.session.thread import ThreadRecord


@record
class RolledBack:
    """The last rollback. Events after ``covers``, up to sequence ``at``, may be rolled back."""

    boundary_id: str
    to_turn: str
    covers: int
    at: int


SUMMARY: Final = "summary"
"""Name of the reference to the summary of the turns before a boundary."""
KEPT_COMPACTIONS: Final = 8


@frozen
class Compact:
    """Replaces everything up to the end of a turn by a summary."""

    started: CompactionStarted
    completed: CompactionCompleted
    summary: Ref


@frozen
class RollBack:
    """Rolls back to the end of a turn. ``restored`` is the fold of the remaining facts up to ``last``."""

    started: RollbackStarted
    covers: int
    last: int
    restored: ThreadState
    renewed: tuple[str, ...] = ()


def decide_boundary(state: ThreadRecord, command: RollBack | Compact) -> list[Fact]:
    """The facts of a boundary, in one append: started and completed.

    Raises:
        UnsupportedOperation: a turn is active at a rollback, so its end is no boundary yet.
        InvalidInput: a summary already covers as much.
    """
    match command:
        case RollBack():
            return _decide_rollback(state, command)
        case Compact():
            return _decide_compaction(state, command)
        case _:
            assert_never(command)


def _decide_rollback(state: ThreadRecord, command: RollBack) -> list[Fact]:
    if state.active_turns:
        turns = " ".join(state.active_turns)
        raise UnsupportedOperation(
            "a turn of the thread is under way", why="open_turn", turns=turns
        )
    scope, started = Scope(state.session_id, state.thread_id), command.started
    restored = hashlib.sha256(to_bytes(command.restored)).hexdigest()
    completed = RollbackCompleted(
        boundary_id=started.boundary_id,
        to_turn=started.to_turn,
        covers=command.covers,
        state=command.restored,
        renewed=command.renewed,
    )
    return [
        Fact(scope, started),
        Fact(scope, HistoryReconstructed("thread", "rollback", 1, command.last, restored)),
        Fact(scope, completed),
        Fact(scope, SnapshotUpdated("thread")),
    ]


def _decide_compaction(state: ThreadRecord, command: Compact) -> list[Fact]:
    known = state.compactions or ()
    if known and known[-1].covers >= command.started.last:
        raise InvalidInput("toTurn", f"is already summarized, up to {known[-1].to_turn}")
    scope = Scope(state.session_id, state.thread_id)
    return [
        Fact(scope, command.started),
        Fact(scope, command.completed, {SUMMARY: command.summary}),
        Fact(scope, SnapshotUpdated("thread")),
    ]


def fold_boundary(state: ThreadRecord, event: Event) -> ThreadRecord:
    """The record after a boundary; unchanged by any other event."""
    match event.fact.payload:
        case RollbackCompleted() as back:
            return _fold_rollback(state, back, event)
        case CompactionCompleted(to_turn=str(to_turn)) as done:
            compacted = CompactedTurns(
                boundary_id=done.boundary_id,
                to_turn=to_turn,
                covers=done.first_kept - 1,
                summary=event.fact.refs.get(SUMMARY, Ref(blob=done.sha256)),
                summarized_by=done.summarized_by or "",
            )
            known = (*(state.compactions or ()), compacted)
            return change(state, compactions=known[-KEPT_COMPACTIONS:])
        case _:
            return state


def _fold_rollback(state: ThreadRecord, back: RollbackCompleted, event: Event) -> ThreadRecord:
    kept = back.state
    return change(
        state,
        turns=kept.turns,
        last_outcome=kept.last_outcome,
        catalog=kept.catalog,
        artifacts=kept.artifacts,
        refusals=kept.refusals,
        remotes={
            peer: context for peer, context in state.remotes.items() if peer not in back.renewed
        },
        compactions=kept.compactions or None,
        rolled_back=RolledBack(back.boundary_id, back.to_turn, back.covers, event.sequence),
    )


def read_state(thread: ThreadRecord) -> ThreadState:
    """The state of a thread's turns."""
    return ThreadState(
        turns=thread.turns,
        last_outcome=thread.last_outcome,
        catalog=thread.catalog,
        artifacts=thread.artifacts,
        refusals=thread.refusals,
        compactions=thread.compactions or (),
    )
