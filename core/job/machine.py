"""The job machine: the state of each item, one letter each, and the end of the job.

Pure. ``TABLE`` lists what a caller may do. A failed item waits again while it has attempts left. The job is over when
no item waits or runs: it has completed unless more items failed than its limit allows.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from passerelle.core.errors import InvalidInput, UnsupportedOperation
from passerelle.core.facts import ErrorCategory, ErrorDetail, Ref
from passerelle.core.frozen import frozen
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
"""Items of one job: each takes two characters of a record that every step writes."""
MOST_AT_ONCE: Final = 28
"""Items that run at once: their ends and the next starts fit into one append."""
MOST_ATTEMPTS: Final = 9
WAITING, RUNNING, COMPLETED, FAILED, CANCELLED = "wrcfx"
"""The letters of item states."""
ITEM_STATES: Final = {
    WAITING: "waiting",
    RUNNING: "running",
    COMPLETED: "completed",
    FAILED: "failed",
    CANCELLED: "cancelled",
}


class JobStatus(StrEnum):
    """The status of a job."""

    CREATED = "created"
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"


LIVE: Final = frozenset({JobStatus.CREATED, JobStatus.RUNNING})


@record
class RunningItem:
    """A running item, its attempt number and its task; items count from 1."""

    item: int
    attempt: int
    task_id: str


@record
class JobState:
    """A job. ``states`` has a letter for each item, ``tries`` a digit: its attempts, refused ones included."""

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
    """Whether to ask agents for a stream, so that items report progress."""
    parent: str | None = None
    """The task that delegates it; None: its owner created it directly."""

    @property
    def counts(self) -> ItemCounts:
        """The number of items in each state."""
        return ItemCounts(
            **{name: self.states.count(letter) for letter, name in ITEM_STATES.items()}
        )

    def agent_of(self, item: int) -> str:
        """The agent of an item."""
        return self.agents[item - 1 if len(self.agents) > 1 else 0]

    def tries_of(self, item: int) -> int:
        """How many attempts an item had, refused ones included."""
        return int(self.tries[item - 1])


@frozen
class StopJob:
    """Cancels the items that have not ended; no item starts any more."""

    by: str
    reason: str | None = None
    source: Literal["user", "runtime"] = "user"


@frozen
class RetryItems:
    """Queues failed or cancelled items again: these, or all."""

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
        UnsupportedOperation: the status does not allow it, or no item can be retried.
        InvalidInput: an item that does not exist, or that has not failed.
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
        raise UnsupportedOperation("no item can be retried", status=state.status)
    return again


def list_next(state: JobState, room: int) -> list[tuple[int, int]]:
    """The next items to start, at most ``room``, each with its attempt number; deterministic."""
    if state.status not in LIVE:
        return []
    found = list[tuple[int, int]]()
    at = state.states.find(WAITING)
    while at >= 0 and len(found) < room:
        found.append((at + 1, state.tries_of(at + 1) + 1))
        at = state.states.find(WAITING, at + 1)
    return found


def begins_next(state: JobState, item: int, attempt: int) -> bool:
    """Whether ``list_next`` would return this attempt of an item, given room for all."""
    return (
        state.status in LIVE
        and 0 < item <= len(state.states)
        and state.states[item - 1] == WAITING
        and state.tries_of(item) + 1 == attempt
    )


def has_attempt_left(state: JobState, attempt: int) -> bool:
    """Whether an item that failed at this attempt is retried automatically."""
    return attempt < state.attempts


def find_end(job_id: str, state: JobState) -> JobCompleted | JobFailed | None:
    """The fact that ends a job with no waiting or running item; None if it goes on, or is over."""
    counts = state.counts
    if state.status not in LIVE or counts.waiting or counts.running:
        return None
    if counts.failed <= state.most_failed:
        return JobCompleted(job_id, counts)
    text = f"{counts.failed} items failed; at most {state.most_failed} may fail"
    error = ErrorDetail("items_failed", ErrorCategory.PEER, text)
    return JobFailed(job_id, counts, error)


def begin(created: JobCreated, inputs: Ref) -> JobState:
    """The initial state of a job."""
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
    payload = event.fact.payload
    if isinstance(payload, JobCreated):
        return state or begin(payload, event.fact.refs.get(INPUT) or Ref())
    if state is None:
        return None
    match payload:
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
            # For a cancelled job this fact records that its running tasks were cancelled.
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
    """``running`` stays, since its tasks are still to be cancelled."""
    stopped = state.states.replace(WAITING, CANCELLED).replace(RUNNING, CANCELLED)
    return change(state, states=stopped)


def _end(state: JobState, item: int, letter: str) -> JobState:
    states = _put(state.states, item, letter)
    return change(state, states=states, running=_list_others(state, item))


def _list_others(state: JobState, item: int) -> tuple[RunningItem, ...]:
    return tuple([one for one in state.running if one.item != item])


def _put(letters: str, item: int, letter: str) -> str:
    """The letters with another one for an item, if there is such an item."""
    if not 0 < item <= len(letters):
        return letters
    return f"{letters[: item - 1]}{letter}{letters[item:]}"


def _digit(attempt: int) -> str:
    return str(min(attempt, MOST_ATTEMPTS))
