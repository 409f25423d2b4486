"""The job machine: what becomes of the items of a batch, one letter each, and when the batch is over.

Pure. ``TABLE`` is the whole of what a caller may do. An item that failed waits again while it has attempts left. The
job is over when no item waits or runs: it has completed unless more items failed than its rule allows.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from passerelle.core.errors import InvalidInput, UnsupportedOperation
from passerelle.core.facts import ErrorCategory, ErrorDetail, Ref
from passerelle.core.payloads.job import (
    ItemCounts,
    JobCancelled,
    JobCompleted,
    JobCreated,
    JobFailed,
    JobItemCompleted,
    JobItemFailed,
    JobItemStarted,
    JobProgress,
    JobStarted,
)
from passerelle.core.wire.record import change, record

if TYPE_CHECKING:
    from passerelle.core.events import Event

INPUT: Final = "input"
"""Name of the reference to the messages of the items."""
MOST_ITEMS: Final = 1_000
"""Items of one job: each is two characters of a record that every step writes."""
MOST_AT_ONCE: Final = 28
"""Items that run at once: their ends and the begins of as many go into one append."""
MOST_ATTEMPTS: Final = 9
WAITING, RUNNING, COMPLETED, FAILED, CANCELLED = "wrcfx"
"""The letters of items."""
ITEM_STATES: Final = {
    WAITING: "waiting",
    RUNNING: "running",
    COMPLETED: "completed",
    FAILED: "failed",
    CANCELLED: "cancelled",
}


class JobStatus(StrEnum):
    """Where a job stands."""

    CREATED = "created"
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"


LIVE: Final = frozenset({JobStatus.CREATED, JobStatus.RUNNING})


@record
class RunningItem:
    """An item that runs, for the ``attempt``-th time, as a task; items count from 1."""

    item: int
    attempt: int
    task_id: str


@record
class JobState:
    """A job. ``states`` has a letter for each item, ``tries`` a digit: how often it was begun, or refused."""

    objective: str
    over: str
    agents: tuple[str, ...]
    states: str
    tries: str
    concurrency: int
    attempts: int
    most_failed: int
    input: Ref
    status: JobStatus = JobStatus.CREATED
    running: tuple[RunningItem, ...] = ()
    schedule: str | None = None
    progress: bool | None = None
    """Whether agents are asked for a stream, so that items show how far they are."""
    parent: str | None = None
    """The task that delegates it; None: its owner has made it for itself."""

    @property
    def counts(self) -> ItemCounts:
        """How many items stand where."""
        return ItemCounts(
            **{name: self.states.count(letter) for letter, name in ITEM_STATES.items()}
        )

    def agent_of(self, item: int) -> str:
        """Whom an item is for."""
        return self.agents[item - 1 if len(self.agents) > 1 else 0]

    def tries_of(self, item: int) -> int:
        """How often an item was begun, or refused."""
        return int(self.tries[item - 1])


@dataclass(frozen=True, slots=True)
class StopJob:
    """Items that have not ended are cancelled, and nothing begins any more."""

    by: str
    reason: str | None = None
    source: Literal["user", "runtime"] = "user"


@dataclass(frozen=True, slots=True)
class RetryItems:
    """Items that failed or were cancelled wait again: these, or all of them."""

    by: str
    items: tuple[int, ...] = ()


JobCommand: TypeAlias = StopJob | RetryItems

_CREATED, _RUNNING, _COMPLETED, _FAILED, _CANCELLED = JobStatus
TABLE: Final[dict[type[JobCommand], dict[JobStatus, JobStatus]]] = {
    StopJob: {_CREATED: _CANCELLED, _RUNNING: _CANCELLED},
    RetryItems: {
        _RUNNING: _RUNNING,
        _COMPLETED: _RUNNING,
        _FAILED: _RUNNING,
        _CANCELLED: _RUNNING,
    },
}


def decide(job_id: str, state: JobState, command: JobCommand) -> JobCancelled | JobStarted:
    """The fact of a command.

    Raises:
        UnsupportedOperation: the job is in no status for it, or nothing of it can be tried again.
        InvalidInput: an item that the job does not have, or that has not failed.
    """
    if state.status not in TABLE[type(command)]:
        raise UnsupportedOperation(f"the job is {state.status}", status=state.status)
    if isinstance(command, StopJob):
        counts = _stop(state).counts
        return JobCancelled(job_id, counts, command.by, command.source, command.reason)
    if state.status is _CANCELLED and state.running:
        raise UnsupportedOperation("its tasks are being stopped; try again in a moment")
    again = _choose_again(state, command.items)
    return JobStarted(job_id, again, command.by)


def _choose_again(state: JobState, items: tuple[int, ...]) -> tuple[int, ...]:
    for item in items:
        if not 0 < item <= len(state.states):
            raise InvalidInput("items", f"the job has no item {item}")
        if state.states[item - 1] not in {FAILED, CANCELLED}:
            raise InvalidInput("items", f"item {item} is {ITEM_STATES[state.states[item - 1]]}")
    chosen = items or range(1, len(state.states) + 1)
    again = tuple(
        item
        for item in dict.fromkeys(chosen)
        if state.states[item - 1] in {FAILED, CANCELLED} and state.tries_of(item) < MOST_ATTEMPTS
    )
    if not again:
        raise UnsupportedOperation("no item can be tried again", status=state.status)
    return again


def list_next(state: JobState, room: int) -> list[tuple[int, int]]:
    """The items that begin next, at most ``room``, each with the number of the attempt: the same whoever asks."""
    if state.status not in LIVE:
        return []
    found = list[tuple[int, int]]()
    at = state.states.find(WAITING)
    while at >= 0 and len(found) < room:
        found.append((at + 1, state.tries_of(at + 1) + 1))
        at = state.states.find(WAITING, at + 1)
    return found


def begins_next(state: JobState, item: int, attempt: int) -> bool:
    """Whether ``list_next`` would name this attempt of an item, were there room for all that wait."""
    return (
        state.status in LIVE
        and 0 < item <= len(state.states)
        and state.states[item - 1] == WAITING
        and state.tries_of(item) + 1 == attempt
    )


def has_attempt_left(state: JobState, attempt: int) -> bool:
    """Whether an item that failed at this attempt is tried again by itself."""
    return attempt < state.attempts


def find_end(job_id: str, state: JobState) -> JobCompleted | JobFailed | None:
    """The fact that ends a job in which nothing waits or runs; None where it goes on, or is over."""
    counts = state.counts
    if state.status not in LIVE or counts.waiting or counts.running:
        return None
    if counts.failed <= state.most_failed:
        return JobCompleted(job_id, counts)
    text = f"{counts.failed} items failed; {state.most_failed} may"
    error = ErrorDetail("items_failed", ErrorCategory.PEER, text)
    return JobFailed(job_id, counts, error)


def begin(created: JobCreated, inputs: Ref) -> JobState:
    """A job as it is made."""
    return JobState(
        objective=created.objective,
        over=created.over,
        agents=created.agents or (),
        states=WAITING * created.items,
        tries="0" * created.items,
        concurrency=created.concurrency or 1,
        attempts=created.attempts or 1,
        most_failed=created.most_failed or 0,
        input=inputs,
        schedule=created.schedule,
        progress=created.progress,
        parent=created.parent_task_id,
    )


FOLDED: Final[frozenset[type]] = frozenset(
    {
        JobCreated,
        JobStarted,
        JobProgress,
        JobItemStarted,
        JobItemCompleted,
        JobItemFailed,
        JobCompleted,
        JobFailed,
        JobCancelled,
    }
)


def evolve(state: JobState | None, event: Event) -> JobState | None:  # noqa: C901  one for each fact
    """The job after a fact; total."""
    said = event.fact.payload
    if isinstance(said, JobCreated):
        return state or begin(said, event.fact.refs.get(INPUT) or Ref())
    if state is None:
        return None
    match said:
        case JobStarted(retried=retried):
            again = frozenset(retried)
            letters = (WAITING if at in again else one for at, one in enumerate(state.states, 1))
            return change(state, states="".join(letters), status=_RUNNING)
        case JobItemStarted(item=item, attempt=attempt):
            running = RunningItem(item, attempt, event.fact.scope.task_id or "")
            return change(
                state,
                states=_put(state.states, item, RUNNING),
                tries=_put(state.tries, item, _digit(attempt)),
                running=(*_list_others(state, item), running),
            )
        case JobItemCompleted(item=item):
            return _end(state, item, COMPLETED)
        case JobItemFailed(item=item, retries=retries):
            return _end(state, item, WAITING if retries else FAILED)
        case JobProgress(refused=refused):
            for one in refused:
                retries = has_attempt_left(state, one.attempt)
                state = change(
                    state,
                    states=_put(state.states, one.item, WAITING if retries else FAILED),
                    tries=_put(state.tries, one.item, _digit(one.attempt)),
                )
            # Of a job that was cancelled this says that the tasks which ran were told.
            return change(state, running=()) if state.status is _CANCELLED else state
        case JobCompleted():
            return change(state, status=_COMPLETED)
        case JobFailed():
            return change(state, status=_FAILED)
        case JobCancelled():
            return change(_stop(state), status=_CANCELLED)
        case _:
            return state


def _stop(state: JobState) -> JobState:
    """What runs stays named, since its tasks are still to be told."""
    stopped = state.states.replace(WAITING, CANCELLED).replace(RUNNING, CANCELLED)
    return change(state, states=stopped)


def _end(state: JobState, item: int, letter: str) -> JobState:
    states = _put(state.states, item, letter)
    return change(state, states=states, running=_list_others(state, item))


def _list_others(state: JobState, item: int) -> tuple[RunningItem, ...]:
    return tuple([one for one in state.running if one.item != item])


def _put(letters: str, item: int, letter: str) -> str:
    """The same letters with another one for an item, if there is such an item."""
    if not 0 < item <= len(letters):
        return letters
    return f"{letters[: item - 1]}{letter}{letters[item:]}"


def _digit(attempt: int) -> str:
    return str(min(attempt, MOST_ATTEMPTS))
