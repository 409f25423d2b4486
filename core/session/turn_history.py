"""The turns of a thread, read from its stream, and the thread's state without some of them (PRS-5)."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from passerelle.core.errors import InvalidInput
from passerelle.core.frozen import frozen
from passerelle.core.payloads.context import CompactionCompleted
from passerelle.core.payloads.conversation import (
    ThreadUpdated,
    TurnCompleted,
    TurnFailed,
    TurnSubmitted,
)
from passerelle.core.payloads.history import RollbackCompleted, RollbackStarted, ThreadState
from passerelle.core.payloads.run import OutputExpired
from passerelle.core.payloads.task import TaskAttemptStarted
from passerelle.core.session.boundaries import read_state
from passerelle.core.session.thread import ThreadRecord, evolve

if TYPE_CHECKING:
    from collections.abc import Sequence

    from passerelle.core.events import Event

FIELD: Final = "toTurn"
MOST_TASKS: Final = 56
"""Tasks that one rollback can remove: each is a fact of its one append."""
MOST_TURNS: Final = 512


@frozen
class HistoryTurn:
    """A turn. ``ended`` is the sequence of its end; ``gone``: it was rolled back."""

    turn_id: str
    task_id: str
    ended: int | None = None
    gone: bool = False


@frozen
class TurnBoundary:
    """The end of a turn, at ``covers``, and the later turns that were not rolled back."""

    to_turn: str
    covers: int
    kept: tuple[HistoryTurn, ...]
    behind: tuple[HistoryTurn, ...]

    @property
    def summed_up(self) -> int:
        """The last end of a turn up to here: the end of what a summary covers.

        Raises:
            InvalidInput: one of the turns has not ended yet.
        """
        going = next((turn.turn_id for turn in self.kept if turn.ended is None), None)
        if going is not None:
            raise InvalidInput(FIELD, f"{going} before it has no answer yet")
        return max(turn.ended or 0 for turn in self.kept)

    @property
    def left(self) -> frozenset[str]:
        """The turns after it, and their tasks."""
        return frozenset((*self.turns, *self.tasks))

    @property
    def turns(self) -> tuple[str, ...]:
        """The turns after it."""
        return tuple(turn.turn_id for turn in self.behind)

    @property
    def tasks(self) -> tuple[str, ...]:
        """Their tasks, each once."""
        return tuple(dict.fromkeys(turn.task_id for turn in self.behind))


@dataclass(slots=True)
class TurnHistory:
    """The turns of one thread, in order of submission."""

    thread_id: str
    turns: dict[str, HistoryTurn] = field(default_factory=dict[str, HistoryTurn])
    expired: dict[str, str] = field(default_factory=dict[str, str])
    """For outputs that are no longer kept: the task by the hash of the output."""
    _peers: dict[str, set[str]] = field(default_factory=dict[str, set[str]])

    def add(self, event: Event) -> None:
        """Adds the next event of the session."""
        scope = event.fact.scope
        if scope.thread_id != self.thread_id:
            return
        match event.fact.payload:
            case TurnSubmitted():
                turn = HistoryTurn(scope.turn_id or "", scope.task_id or "")
                self.turns.setdefault(turn.turn_id, turn)
            case TurnCompleted() | TurnFailed():
                self._change(scope.turn_id or "", ended=event.sequence)
            case TaskAttemptStarted(worker=worker):
                self._peers.setdefault(scope.task_id or "", set()).add(worker.peer)
            case ThreadUpdated(peer=str(peer)):
                self._peers.setdefault(scope.task_id or "", set()).add(peer)
            case OutputExpired(sha256=sha256):
                self.expired[sha256] = scope.task_id or ""
            case RollbackStarted(turns=turns):
                for turn_id in turns:
                    self._change(turn_id, gone=True)
            case _:
                pass

    def _change(self, turn_id: str, *, ended: int | None = None, gone: bool = False) -> None:
        known = self.turns.get(turn_id)
        if known is not None:
            self.turns[turn_id] = replace(
                known, ended=known.ended or ended, gone=known.gone or gone
            )

    def list_gone(self) -> frozenset[str]:
        """The tasks and turns that were rolled back before."""
        gone = [turn for turn in self.turns.values() if turn.gone]
        return frozenset(one for turn in gone for one in (turn.task_id, turn.turn_id))

    def list_peers(self, tasks: Sequence[str]) -> frozenset[str]:
        """The agents that tasks were sent to."""
        return frozenset(peer for task in tasks for peer in self._peers.get(task, ()))

    def find(self, to_turn: str) -> TurnBoundary:
        """The boundary at the end of a turn.

        Raises:
            InvalidInput: it is not a turn of the thread, was rolled back, or has not ended yet.
        """
        turn = self.turns.get(to_turn)
        if turn is None:
            raise InvalidInput(FIELD, "is not a turn of the thread")
        if turn.gone:
            raise InvalidInput(FIELD, "is already rolled back")
        if turn.ended is None:
            raise InvalidInput(FIELD, "has no answer yet")
        standing = [one for one in self.turns.values() if not one.gone]
        split = standing.index(turn) + 1
        return TurnBoundary(to_turn, turn.ended, tuple(standing[:split]), tuple(standing[split:]))


def check_rollback(boundary: TurnBoundary) -> None:
    """Checks that the turns after a boundary can be rolled back.

    Raises:
        InvalidInput: a task spans the boundary, or there are more than one append can roll back.
    """
    before = {one.task_id for one in boundary.kept}
    across = next((one for one in reversed(boundary.behind) if one.task_id in before), None)
    if across is not None:
        raise InvalidInput(FIELD, f"a task continues after it, up to {across.turn_id}")
    if len(boundary.tasks) > MOST_TASKS or len(boundary.behind) > MOST_TURNS:
        reason = (
            f"has more than {MOST_TASKS} tasks or {MOST_TURNS} turns after it: roll back in steps"
        )
        raise InvalidInput(FIELD, reason)


@dataclass(slots=True)
class FilteredThread:
    """Folds a thread ``without`` the facts of some tasks, and without the summaries up to some turns."""

    thread_id: str
    without: frozenset[str]
    record: ThreadRecord | None = None

    def add(self, event: Event) -> None:
        """Adds the next event of the session."""
        scope = event.fact.scope
        if scope.thread_id != self.thread_id or scope.task_id in self.without:
            return
        match event.fact.payload:
            case RollbackCompleted():
                pass  # its state includes tasks that are left out now
            case CompactionCompleted(to_turn=str(turn)) if turn in self.without:
                pass
            case _:
                self.record = evolve(self.record, event)

    @property
    def state(self) -> ThreadState:
        """The resulting state of the thread's turns."""
        return ThreadState(0) if self.record is None else read_state(self.record)
