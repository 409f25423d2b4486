"""The turns of a thread as its stream tells of them, and what the thread came to with some of them alone (PRS-5)."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from passerelle.core.errors import InvalidInput
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
"""Tasks that are left behind at once: each is a fact of the one append that does it."""
MOST_TURNS: Final = 512


@dataclass(frozen=True, slots=True)
class HistoryTurn:
    """A turn. ``ended`` is the sequence of its end; ``gone``: the thread went back behind it."""

    turn_id: str
    task_id: str
    ended: int | None = None
    gone: bool = False


@dataclass(frozen=True, slots=True)
class TurnBoundary:
    """The end of a turn, at ``covers``, and the turns behind it that still stand."""

    to_turn: str
    covers: int
    kept: tuple[HistoryTurn, ...]
    behind: tuple[HistoryTurn, ...]

    @property
    def summed_up(self) -> int:
        """The last end of a turn up to here: what a summary stands for.

        Raises:
            InvalidInput: one of them has no end yet.
        """
        going = next((turn.turn_id for turn in self.kept if turn.ended is None), None)
        if going is not None:
            raise InvalidInput(FIELD, f"{going} before it has no answer yet")
        return max(turn.ended or 0 for turn in self.kept)

    @property
    def left(self) -> frozenset[str]:
        """The turns behind it, and their tasks."""
        return frozenset((*self.turns, *self.tasks))

    @property
    def turns(self) -> tuple[str, ...]:
        """The turns behind it."""
        return tuple(turn.turn_id for turn in self.behind)

    @property
    def tasks(self) -> tuple[str, ...]:
        """Their tasks, each once."""
        return tuple(dict.fromkeys(turn.task_id for turn in self.behind))


@dataclass(slots=True)
class TurnHistory:
    """The turns of one thread, in the order in which they were submitted."""

    thread_id: str
    turns: dict[str, HistoryTurn] = field(default_factory=dict[str, HistoryTurn])
    expired: dict[str, str] = field(default_factory=dict[str, str])
    """By its hash, the task of an output whose content is not kept any more."""
    _peers: dict[str, set[str]] = field(default_factory=dict[str, set[str]])

    def add(self, event: Event) -> None:
        """Takes the next event of the session."""
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
        """The tasks and the turns behind which the thread has gone back before."""
        gone = [turn for turn in self.turns.values() if turn.gone]
        return frozenset(one for turn in gone for one in (turn.task_id, turn.turn_id))

    def list_peers(self, tasks: Sequence[str]) -> frozenset[str]:
        """The agents that tasks were sent to."""
        return frozenset(peer for task in tasks for peer in self._peers.get(task, ()))

    def find(self, to_turn: str) -> TurnBoundary:
        """The boundary at the end of a turn.

        Raises:
            InvalidInput: it is no turn of the thread, does not stand any more, or has no end yet.
        """
        turn = self.turns.get(to_turn)
        if turn is None:
            raise InvalidInput(FIELD, "is no turn of the thread")
        if turn.gone:
            raise InvalidInput(FIELD, "is rolled back already: the thread went back behind it")
        if turn.ended is None:
            raise InvalidInput(FIELD, "has no answer yet")
        standing = [one for one in self.turns.values() if not one.gone]
        split = standing.index(turn) + 1
        return TurnBoundary(to_turn, turn.ended, tuple(standing[:split]), tuple(standing[split:]))


def check_rollback(boundary: TurnBoundary) -> None:
    """Whether what stands behind a boundary can be left behind.

    Raises:
        InvalidInput: a task goes on from before it to behind it, or there is more than one append leaves behind.
    """
    before = {one.task_id for one in boundary.kept}
    across = next((one for one in reversed(boundary.behind) if one.task_id in before), None)
    if across is not None:
        raise InvalidInput(FIELD, f"a task goes on behind it, up to {across.turn_id}")
    if len(boundary.tasks) > MOST_TASKS or len(boundary.behind) > MOST_TURNS:
        reason = f"more than {MOST_TASKS} tasks or {MOST_TURNS} turns stand behind it: go in steps"
        raise InvalidInput(FIELD, reason)


@dataclass(slots=True)
class FilteredThread:
    """What a thread comes to ``without`` the facts of some tasks, and the summaries up to some turns."""

    thread_id: str
    without: frozenset[str]
    record: ThreadRecord | None = None

    def add(self, event: Event) -> None:
        """Takes the next event of the session."""
        scope = event.fact.scope
        if scope.thread_id != self.thread_id or scope.task_id in self.without:
            return
        match event.fact.payload:
            case RollbackCompleted():
                pass  # what it came to holds for more tasks than stand now
            case CompactionCompleted(to_turn=str(turn)) if turn in self.without:
                pass
            case _:
                self.record = evolve(self.record, event)

    @property
    def state(self) -> ThreadState:
        """What the thread knows of its turns then."""
        return ThreadState(0) if self.record is None else read_state(self.record)
