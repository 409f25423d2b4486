"""The contexts opened at agents, as children of the turn or task that opened them (ID-10, SNAP-12, PRS-6).

A subagent is an agent's context for a thread. It is derived from the records of the thread and of its tasks, whose
attempts name the agents; nothing is stored for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, TypeAlias

from passerelle.core.job.item_name import find_item
from passerelle.core.read_models.mark import FreshnessMark, not_applicable, unavailable, unknown
from passerelle.core.read_models.task import name_task
from passerelle.core.session.thread import ThreadRecord, has_context, name_current
from passerelle.core.subagent.name import SubagentName
from passerelle.core.task.record import Attempt, Edge, TaskRecord
from passerelle.core.task.status import ENDED, Status
from passerelle.core.wire.record import record

Recoverability: TypeAlias = Literal["recoverable", "message_only"]
SubagentState: TypeAlias = Literal["idle", "running", "waiting", "unreachable", "closed"]
_S: Final = Status
_WAITING: Final = frozenset({_S.WAITING_INPUT, _S.WAITING_PERMISSION, _S.PAUSED, _S.BLOCKED})
_DOUBTFUL: Final = frozenset({_S.LOST, _S.UNKNOWN, _S.STALE})
_UNSENT: Final = frozenset({_S.DRAFT, _S.ACCEPTED})


@record
class SubagentParent:
    """The parent: the delegated turn, or the task that it was spawned for, with its turn then."""

    session_id: str
    thread_id: str | None = None
    turn_id: str | None = None
    task_id: str | None = None


@record
class Subagent:
    """The context of an agent in a thread. ``runs`` are the attempts sent there, ``run_id`` the last of them.

    ``recoverable``: the agent named a task, which can be read again at any time. ``open_tasks`` have not ended.
    """

    subagent_id: str
    peer: str
    state: SubagentState
    parent: SubagentParent
    status: Status | None
    """Status of its last run; None if nothing was sent yet."""
    recoverability: Recoverability | None
    run_id: str | None = None
    thread_id: str | None = None
    context_id: str | None = None
    """The id under which callers continue it."""
    remote_task_id: str | None = None
    remote_context_id: str | None = None
    opened_at: str | None = None
    closed_at: str | None = None
    runs: tuple[str, ...] = ()
    tasks: tuple[str, ...] = ()
    open_tasks: tuple[str, ...] = ()
    marks: dict[str, FreshnessMark] = field(default_factory=dict[str, FreshnessMark])


@record
class JobLine:
    """A job that a task is an item of or has delegated, and the job's progress."""

    job_id: str
    status: str
    items: int
    counts: dict[str, int]
    item: int | None = None
    """The item number of the task, from 1; None: the task delegated the job, or the session is the job's own."""


@record
class SubagentSummary:
    """The children of a task."""

    task_id: str
    sequence: int
    subagents: tuple[Subagent, ...]
    children: tuple[str, ...] = ()
    """Tasks delegated from this one."""
    jobs: tuple[JobLine, ...] = ()
    marks: dict[str, FreshnessMark] = field(default_factory=dict[str, FreshnessMark])


@dataclass(slots=True)
class _Use:
    """The attempts sent into one context, in order."""

    thread: ThreadRecord | None
    attempts: list[tuple[TaskRecord, Attempt]] = field(
        default_factory=list[tuple[TaskRecord, Attempt]]
    )
    unsent: list[TaskRecord] = field(default_factory=list[TaskRecord])


def find_number(thread: ThreadRecord | None, attempt: Attempt) -> int:
    """The number, from 1, of the agent's context in the thread that an attempt was sent into."""
    peer = attempt.worker.peer
    closed = [one for one in (thread.closed if thread else None) or () if one.peer == peer]
    for one in closed:
        is_same = one.native_id is not None and one.native_id == attempt.remote_context_id
        if is_same or attempt.started_at < one.at:
            return one.number
    return closed[-1].number + 1 if closed else 1


def list_edges(task: TaskRecord, thread: ThreadRecord | None) -> list[Edge]:
    """The edges from a task to the contexts of its attempts (GR-5, AP-5).

    Includes those of a spawned child task and of a job item; each edge starts at the task.
    """
    edges = dict[str, Edge]()
    linked = {edge.target for edge in task.relationships if edge.kind == "spawned_subagent"}
    for attempt in task.attempts:
        name = SubagentName(task.thread_id or "", attempt.worker.peer, find_number(thread, attempt))
        target, closed = str(name), _find_closed(thread, name)
        if target in linked:
            continue
        known = edges.get(target)
        edges[target] = Edge(
            edge_id=f"subagent:{target}",
            kind="spawned_subagent",
            target=target,
            status="open" if closed is None else "satisfied",
            created_at=known.created_at if known else attempt.started_at,
            updated_at=closed or attempt.ended_at or attempt.started_at,
            reason=None if closed is None else "the context is closed",
        )
    found = [*edges.values()]
    item = find_item(task)
    if item is not None:
        found.append(
            Edge(
                edge_id=f"parent:{item[0]}",
                kind="parent",
                target=item[0],
                status="open",
                created_at=task.created_at,
                updated_at=task.created_at,
                reason=f"item {item[1]} of the job",
            )
        )
    return found


def _find_closed(thread: ThreadRecord | None, name: SubagentName) -> str | None:
    """When a context was closed; None while it is open."""
    closed = (thread.closed if thread is not None else None) or ()
    fitting = (one.at for one in closed if (one.peer, one.number) == (name.peer, name.number))
    return next(fitting, None)


def find_subagents(
    tasks: Iterable[TaskRecord],
    threads: Mapping[str, ThreadRecord],
    turns: Mapping[str, str] | None = None,
) -> list[Subagent]:
    """Every subagent of some tasks, first opened first.

    ``threads`` are those of the tasks; ``turns`` the first turns of tasks with several, by task.
    """
    uses = dict[SubagentName, _Use]()
    for known in threads.values():
        for closed in known.closed or ():
            uses[SubagentName(known.thread_id, closed.peer, closed.number)] = _Use(known)
        if known.parent is not None and known.parent.peer is not None:
            current = name_current(known, known.parent.peer)
            if has_context(known, current):
                uses[current] = _Use(known)
    listed = sorted(tasks, key=lambda task: (task.first, task.task_id))
    for task in listed:
        thread = threads.get(task.thread_id or "")
        for attempt in task.attempts:
            number = find_number(thread, attempt)
            name = SubagentName(task.thread_id or "", attempt.worker.peer, number)
            uses.setdefault(name, _Use(thread)).attempts.append((task, attempt))
    for task in listed:
        thread = threads.get(task.thread_id or "")
        if task.attempts or thread is None or task.peer is None:
            continue
        if (use := uses.get(name_current(thread, task.peer))) is not None:
            use.unsent.append(task)
    found = [_show(name, use, turns or {}) for name, use in uses.items()]
    return sorted(found, key=lambda one: (one.opened_at or "~", one.subagent_id))


def list_subagents(
    task: TaskRecord,
    found: Sequence[Subagent] | None = None,
    jobs: Sequence[JobLine] = (),
    *,
    left_out: int = 0,
) -> SubagentSummary:
    """The children of a record: those it was sent to, and those spawned for it.

    ``found`` are the subagents of its session; ``left_out`` older tasks were not read.
    """
    if found is None:
        found = find_subagents([task], {})
    name = name_task(task)
    mine = (one for one in found if name in one.tasks or one.parent.task_id == task.task_id)
    marks: dict[str, FreshnessMark] = {}
    if not jobs:
        marks["jobs"] = not_applicable("the task is not part of a job")
    if left_out:
        marks["subagents"] = unavailable(f"{left_out} older tasks were not read")
    return SubagentSummary(
        task_id=name,
        sequence=task.last,
        subagents=tuple(mine),
        children=tuple(
            edge.target
            for edge in task.relationships
            if edge.kind == "child" and edge.status != "removed" and edge.items is None
        ),
        jobs=tuple(jobs),
        marks=marks,
    )


def _show(name: SubagentName, use: _Use, turns: Mapping[str, str]) -> Subagent:
    last = use.attempts[-1] if use.attempts else None
    closed_at = _find_closed(use.thread, name)
    attempt = last[1] if last else None
    context = attempt.remote_context_id if attempt else None
    if use.thread is not None and closed_at is None:
        context = use.thread.remotes.get(name.peer, context)
    recoverability = _judge(use)
    marks: dict[str, FreshnessMark] = {}
    if recoverability is None:
        marks["recoverability"] = unknown("the agent has not answered yet")
    if context is None:
        marks["remoteContextId"] = unknown("no context is known at the agent")
    by_id = {one.task_id: one for one in [*(task for task, _ in use.attempts), *use.unsent]}
    used_by = [*by_id.values()]
    return Subagent(
        subagent_id=str(name),
        peer=name.peer,
        state="closed" if closed_at else _find_state(name, used_by),
        parent=_find_parent(use, turns),
        status=attempt.status if attempt else None,
        recoverability=recoverability,
        run_id=attempt.run_id if attempt else None,
        thread_id=name.thread_id or None,
        context_id=_find_context(use),
        remote_task_id=attempt.remote_task_id if attempt else None,
        remote_context_id=context,
        opened_at=use.attempts[0][1].started_at if use.attempts else None,
        closed_at=closed_at,
        runs=tuple(one.run_id for _, one in use.attempts),
        tasks=tuple(map(name_task, used_by)),
        open_tasks=tuple(name_task(one) for one in used_by if one.status not in ENDED),
        marks=marks,
    )


def _find_state(name: SubagentName, tasks: Iterable[TaskRecord]) -> SubagentState:
    """The state of the context: active work counts before waiting work."""
    at_it = {one.status for one in tasks if one.status not in ENDED and one.peer == name.peer}
    waiting, doubtful = at_it & _WAITING, at_it & _DOUBTFUL
    if at_it - waiting - doubtful - _UNSENT:
        return "running"
    if waiting:
        return "waiting"
    return "unreachable" if doubtful else "idle"


def _find_parent(use: _Use, turns: Mapping[str, str]) -> SubagentParent:
    thread = use.thread
    first = next(iter([task for task, _ in use.attempts] + use.unsent), None)
    above = thread.parent if thread is not None else None
    if thread is not None and above is not None and above.thread_id != thread.thread_id:
        return SubagentParent(thread.session_id, above.thread_id, above.turn_id, above.task_id)
    if first is None:
        return SubagentParent(
            thread.session_id if thread else "", thread.thread_id if thread else None
        )
    turn = turns.get(first.task_id, first.turn_id)
    return SubagentParent(first.session_id, first.thread_id, turn, first.task_id)


def _find_context(use: _Use) -> str | None:
    if use.thread is not None:
        return use.thread.context_id
    return use.attempts[0][0].scope.context_id if use.attempts else None


def _judge(use: _Use) -> Recoverability | None:
    if any(attempt.remote_task_id is not None for _, attempt in use.attempts):
        return "recoverable"
    if not use.attempts:
        return None
    task, attempt = use.attempts[-1]
    is_answered = attempt.status is _S.COMPLETED
    return "message_only" if is_answered or task.family == "message" else None
