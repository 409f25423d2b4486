"""The thread machine: one facade context, one-to-one and permanent (ID-3), and its context at each agent (A2A-4).

A thread is *idle* or *running*: running while a turn of it has started and has no answer yet. Whenever a turn begins or
ends, a fact records the thread's status (EVC-2); for the turn that opens it, ``thread.started`` does. The last fact of
a turn is ``snapshot.updated``, stored together with what readers are shown (EVC-18). A thread belongs to the session in
which its context was first used, and cannot be moved to another one.
"""

from __future__ import annotations

from dataclasses import field
from enum import StrEnum
from typing import TYPE_CHECKING, Final, TypeAlias, assert_never, get_args

from passerelle.core.errors import InvalidInput, NotFound
from passerelle.core.events import Fact
from passerelle.core.facts import CompactedTurns, ErrorDetail, NamedArtifact, Scope
from passerelle.core.frozen import frozen
from passerelle.core.payloads.context import CompactionCompleted
from passerelle.core.payloads.conversation import (
    QueueChanged,
    QueuePolicy,
    ThreadParent,
    ThreadStarted,
    ThreadUpdated,
    TurnCompleted,
    TurnFailed,
    TurnStarted,
    TurnSubmitted,
)
from passerelle.core.payloads.history import RollbackCompleted
from passerelle.core.payloads.run import ArtifactChanged
from passerelle.core.payloads.runtime import SnapshotUpdated
from passerelle.core.payloads.subagent import SubagentClosed
from passerelle.core.payloads.task import TaskAttemptStarted
from passerelle.core.payloads.tool import ToolCatalogResolved
from passerelle.core.session.boundaries import (
    Compact,
    RollBack,
    RolledBack,
    decide_boundary,
    fold_boundary,
)
from passerelle.core.subagent.name import SubagentName, parse_subagent
from passerelle.core.wire.record import change, fill, record

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from passerelle.core.events import Event
    from passerelle.core.facts import Ref

SCHEMA: Final = 1
POLICIES: Final[tuple[QueuePolicy, ...]] = get_args(QueuePolicy)
KEPT_NAMES: Final = 32
"""Names of artifacts that a thread remembers, last used ones."""
KEPT_CLOSED: Final = 32
"""Closed contexts of agents that a thread remembers, the last ones."""
KEPT_REFUSALS: Final = 8
"""Turns with a refused message whose error a thread remembers, the last ones."""


class ThreadStatus(StrEnum):
    """Whether a turn is active."""

    IDLE = "idle"
    RUNNING = "running"


@record
class ClosedContext:
    """The ``number``th context, from 1, that an agent had in a thread; the next message to it opens another one."""

    peer: str
    number: int
    at: str
    native_id: str | None = None


@record
class ThreadRecord:
    """One thread. ``remotes`` has the context id for each agent; ``turns`` counts all turns."""

    schema: int
    thread_id: str
    session_id: str
    context_id: str
    owner: str
    tenant: str
    principal: str
    status: ThreadStatus
    created_at: str
    updated_at: str
    last: int
    turns: int = 0
    active_turns: tuple[str, ...] = ()
    last_outcome: str | None = None
    remotes: dict[str, str] = field(default_factory=dict[str, str])
    artifacts: dict[str, NamedArtifact] = field(default_factory=dict[str, NamedArtifact])
    refusals: dict[str, ErrorDetail] = field(default_factory=dict[str, ErrorDetail])
    """Why an agent refused the message of a turn, by turn, newest kept: the answer of a turn whose task goes on."""
    catalog: str | None = None
    """Digest of the tool catalog of its last turn; None if nothing was restricted (EVC-8)."""
    compactions: tuple[CompactedTurns, ...] | None = None
    """The newest boundaries with a summary, in order; None: there is none (EVC-13)."""
    rolled_back: RolledBack | None = None
    """The last rollback; None: there was none (EXT-11)."""
    queue_policy: QueuePolicy | None = None
    """The queue policy for a message while a turn is active; None: it starts in parallel."""
    waiting_turns: int = 0
    """The number of queued turns; the record does not name them."""
    parent: ThreadParent | None = None
    """The task that it was made for; None: its own turns are the parents of what is opened in it (ID-10)."""
    closed: tuple[ClosedContext, ...] | None = None
    """The newest closed contexts of agents, in order; None: none was closed (EVC-16)."""


@frozen
class OpenThread:
    """Opens a thread for a new context."""

    session_id: str
    thread_id: str
    started: ThreadStarted


@frozen
class SubmitMessage:
    """Accepts a message as the next turn. ``task_id`` is the task that it opens or continues."""

    session_id: str
    turn_id: str
    task_id: str
    submitted: TurnSubmitted
    refs: Mapping[str, Ref] = field(default_factory=dict[str, "Ref"])
    waits: bool = False
    """Whether it is queued: other turns of the context go first."""


@frozen
class StartTurn:
    """Starts a queued turn."""

    turn_id: str
    task_id: str


@frozen
class ChangeQueue:
    """Records the queue after a change."""

    changed: QueueChanged


@frozen
class EndTurn:
    """A turn has its answer; a repeat has no effect. ``more``: another turn ends together with it."""

    turn_id: str
    task_id: str
    completed: TurnCompleted
    more: bool = False


@frozen
class FailTurn:
    """A turn has no answer and never will."""

    turn_id: str
    task_id: str
    error: ErrorDetail
    more: bool = False
    refused: bool = False
    """Whether the agent refused the message, while its task may go on."""


@frozen
class ResolveTools:
    """The tools of a new turn; recorded only if they changed since the last turn. None: nothing is restricted."""

    scope: Scope
    caller: str
    catalog: ToolCatalogResolved | None


@frozen
class CloseContext:
    """Closes the context of an agent; ``parent`` are the ids of what opened it. A repeat has no effect."""

    name: SubagentName
    parent: Scope
    closed: SubagentClosed


ThreadCommand: TypeAlias = (
    OpenThread
    | SubmitMessage
    | StartTurn
    | ChangeQueue
    | ResolveTools
    | EndTurn
    | FailTurn
    | RollBack
    | Compact
    | CloseContext
)

_BOTH: Final = frozenset({ThreadStatus.IDLE, ThreadStatus.RUNNING})
TABLE: Final[dict[type[ThreadCommand], dict[ThreadStatus | None, frozenset[ThreadStatus]]]] = {
    OpenThread: {None: _BOTH},
    SubmitMessage: {
        ThreadStatus.IDLE: _BOTH,
        ThreadStatus.RUNNING: frozenset({ThreadStatus.RUNNING}),
    },
    StartTurn: dict.fromkeys(ThreadStatus, frozenset({ThreadStatus.RUNNING})),
    ChangeQueue: {status: frozenset({status}) for status in ThreadStatus},
    ResolveTools: {status: frozenset({status}) for status in ThreadStatus},
    EndTurn: {ThreadStatus.RUNNING: _BOTH, ThreadStatus.IDLE: frozenset({ThreadStatus.IDLE})},
    FailTurn: {ThreadStatus.RUNNING: _BOTH, ThreadStatus.IDLE: frozenset({ThreadStatus.IDLE})},
    RollBack: {ThreadStatus.IDLE: frozenset({ThreadStatus.IDLE})},
    Compact: {status: frozenset({status}) for status in ThreadStatus},
    CloseContext: {status: frozenset({status}) for status in ThreadStatus},
}


def decide(state: ThreadRecord | None, command: ThreadCommand) -> list[Fact]:
    """The facts of a command.

    Raises:
        InvalidInput: the context exists already, or belongs to another session (ID-3).
        NotFound: the thread, or the agent's context in it, does not exist.
        UnsupportedOperation: a rollback while a turn is active.
    """
    if isinstance(command, OpenThread):
        if state is not None:
            raise InvalidInput("contextId", "the context already belongs to a session")
        return [Fact(Scope(command.session_id, command.thread_id), command.started)]
    if state is None:
        raise NotFound("context", "")
    match command:
        case SubmitMessage() | StartTurn() | ChangeQueue() | ResolveTools():
            return _take_turn(state, command)
        case EndTurn(completed=completed):
            return _end_turn(state, command, completed)
        case FailTurn(error=error, refused=refused):
            return _end_turn(state, command, TurnFailed(error, True if refused else None))
        case RollBack() | Compact():
            return decide_boundary(state, command)
        case CloseContext():
            return _close_context(state, command)
        case _:
            assert_never(command)


def name_current(state: ThreadRecord, peer: str) -> SubagentName:
    """The current context of an agent in a thread, or the one of its next message."""
    numbers = (one.number for one in state.closed or () if one.peer == peer)
    return SubagentName(state.thread_id, peer, max(numbers, default=0) + 1)


def has_context(state: ThreadRecord, name: SubagentName) -> bool:
    """Whether a context is open: the agent was sent one, or the thread was made for it."""
    if name != name_current(state, name.peer):
        return False
    is_spawned = state.parent is not None and state.parent.peer == name.peer and name.number == 1
    return is_spawned or name.peer in state.remotes


def _close_context(state: ThreadRecord, command: CloseContext) -> list[Fact]:
    name = command.name
    if any((one.peer, one.number) == (name.peer, name.number) for one in state.closed or ()):
        return []
    if not has_context(state, name):
        raise NotFound("subagent", str(name))
    return [Fact(change(command.parent, subagent_id=str(name)), command.closed)]


def _take_turn(
    state: ThreadRecord, command: SubmitMessage | StartTurn | ChangeQueue | ResolveTools
) -> list[Fact]:
    match command:
        case SubmitMessage():
            if command.session_id != state.session_id:
                raise InvalidInput("sessionId", "the context belongs to another session")
            return _begin_turn(state, command)
        case StartTurn(turn_id=turn_id, task_id=task_id):
            scope = _turn_scope(state, turn_id, task_id)
            return [Fact(scope, TurnStarted()), Fact(scope, ThreadUpdated(status="running"))]
        case ChangeQueue(changed=changed):
            return [Fact(Scope(state.session_id, state.thread_id), changed)]
        case ResolveTools():
            return _resolve_tools(state, command)
        case _:
            assert_never(command)


def _begin_turn(state: ThreadRecord, command: SubmitMessage) -> list[Fact]:
    scope = _turn_scope(state, command.turn_id, command.task_id)
    facts = [Fact(scope, command.submitted, command.refs)]
    if command.waits:
        return facts
    facts.append(Fact(scope, TurnStarted()))
    opens = state.status is ThreadStatus.RUNNING and not state.turns
    return facts if opens else [*facts, Fact(scope, ThreadUpdated(status="running"))]


def has_tools(state: ThreadRecord | None, catalog: ToolCatalogResolved | None) -> bool:
    """Whether the last turn had the same tools, so that no fact is needed."""
    known_digest = state.catalog if state is not None else None
    return known_digest == (catalog.digest if catalog is not None else None)


def _resolve_tools(state: ThreadRecord, command: ResolveTools) -> list[Fact]:
    if has_tools(state, command.catalog):
        return []
    return [Fact(command.scope, command.catalog or ToolCatalogResolved(command.caller))]


def _end_turn(
    state: ThreadRecord, command: EndTurn | FailTurn, ended: TurnCompleted | TurnFailed
) -> list[Fact]:
    """The end of a turn; if several end together, the last one records the status of the thread."""
    if command.turn_id not in state.active_turns:
        return []
    scope = _turn_scope(state, command.turn_id, command.task_id)
    if command.more:
        return [Fact(scope, ended)]
    rests = state.active_turns == (command.turn_id,)
    updated = ThreadUpdated(status="idle" if rests else "running")
    return [Fact(scope, ended), Fact(scope, updated), Fact(scope, SnapshotUpdated("thread"))]


def _turn_scope(state: ThreadRecord, turn_id: str, task_id: str) -> Scope:
    return Scope(state.session_id, state.thread_id, turn_id, task_id)


FOLDED: Final[frozenset[type]] = frozenset(
    {
        ThreadStarted,
        ThreadUpdated,
        TurnSubmitted,
        TurnStarted,
        TurnCompleted,
        TurnFailed,
        TaskAttemptStarted,
        ArtifactChanged,
        ToolCatalogResolved,
        RollbackCompleted,
        CompactionCompleted,
        QueueChanged,
        SubagentClosed,
    }
)


def find_thread(event: Event) -> str | None:
    """The thread that an event is about; for a closed context that differs from the thread of its parent."""
    if not isinstance(event.fact.payload, SubagentClosed):
        return event.fact.scope.thread_id
    name = parse_subagent(event.fact.scope.subagent_id or "")
    return None if name is None else name.thread_id


def folds_thread(event: Event) -> bool:
    """Whether the event changes the record of its thread."""
    payload = event.fact.payload
    if isinstance(payload, ArtifactChanged) and not _is_named(payload):
        return False
    return event.fact.scope.thread_id is not None and type(payload) in FOLDED


def _is_named(changed: ArtifactChanged) -> bool:
    """Whether later tasks of the context may produce a further version of it."""
    return changed.direction == "produced" and changed.name is not None


def evolve(state: ThreadRecord | None, event: Event) -> ThreadRecord | None:
    """The record after an event; total."""
    payload = event.fact.payload
    if isinstance(payload, ThreadStarted):
        return state or _start(payload, event)
    other = state is None or find_thread(event) != state.thread_id
    if state is None or other or event.sequence <= state.last or not folds_thread(event):
        return state
    folded = _fold(state, event)
    fresh = change(state) if folded is state else folded
    fill(fresh, updated_at=event.timestamp, last=event.sequence)
    return fresh


def _start(payload: ThreadStarted, event: Event) -> ThreadRecord:
    return ThreadRecord(
        schema=SCHEMA,
        thread_id=event.fact.scope.thread_id or "",
        session_id=event.fact.scope.session_id,
        context_id=payload.context_id,
        owner=payload.owner,
        tenant=payload.tenant,
        principal=payload.principal,
        status=ThreadStatus(payload.status),
        created_at=event.timestamp,
        updated_at=event.timestamp,
        last=event.sequence,
        parent=payload.parent,
    )


def find_holder(state: ThreadRecord) -> str | None:
    """The agent with the most recently used context."""
    return next(reversed(state.remotes), None)


def begin_turn(state: ThreadRecord, turn_id: str, peer: str, context: str) -> ThreadRecord:
    """The record after the facts of a turn that begins at ``peer``, except time and sequence of the last one."""
    return change(
        state,
        turns=state.turns + 1,
        active_turns=(*state.active_turns, turn_id),
        status=ThreadStatus.RUNNING,
        remotes={**state.remotes, peer: context},
    )


def end_turn(
    state: ThreadRecord, turn_id: str, outcome: str, named: Iterable[tuple[str, NamedArtifact]]
) -> ThreadRecord:
    """The same for a turn that ends with ``outcome`` and has produced the artifacts ``named``."""
    artifacts: Mapping[str, NamedArtifact] = state.artifacts
    for name, one in named:
        artifacts = _keep(artifacts, name, one)
    return _end(change(state, artifacts=artifacts), turn_id, outcome)


def _fold(state: ThreadRecord, event: Event) -> ThreadRecord:
    turn_id = event.fact.scope.turn_id or ""
    match event.fact.payload:
        case TurnSubmitted():
            return change(state, turns=state.turns + 1)
        case TurnStarted():
            active = (*state.active_turns, turn_id)
            return change(state, active_turns=active, status=ThreadStatus.RUNNING)
        case TurnCompleted(answer=answer, status=status):
            return _end(state, turn_id, status or answer)
        case TurnFailed(error=error, refused=True):
            kept = list(state.refusals.items())[1 - KEPT_REFUSALS :]
            state = change(state, refusals=dict([*kept, (turn_id, error)]))
            return _end(state, turn_id, error.code)
        case TurnFailed(error=error):
            return _end(state, turn_id, error.code)
        case TaskAttemptStarted(worker=worker, remote_context_id=str(context)):
            return change(state, remotes={**state.remotes, worker.peer: context})
        case ToolCatalogResolved(digest=digest):
            return change(state, catalog=digest)
        case ThreadUpdated(peer=str(peer), remote_context_id=str(context)):
            return change(state, remotes={**state.remotes, peer: context})
        case ArtifactChanged(name=str(name)) as changed:
            return _remember(state, name, changed, event)
        case _:
            return _fold_rare(fold_boundary(state, event), event)


def _fold_rare(state: ThreadRecord, event: Event) -> ThreadRecord:
    payload = event.fact.payload
    if isinstance(payload, SubagentClosed):
        return _fold_closed(state, event)
    if not isinstance(payload, QueueChanged):
        return state
    changed = change(state, waiting_turns=len(payload.order))
    known = next((one for one in POLICIES if one == payload.policy), None)
    return changed if known is None else change(changed, queue_policy=known)


def _fold_closed(state: ThreadRecord, event: Event) -> ThreadRecord:
    name = parse_subagent(event.fact.scope.subagent_id or "")
    if name is None:
        return state
    native_id = state.remotes.get(name.peer)
    closed = ClosedContext(name.peer, name.number, event.timestamp, native_id)
    remotes = {peer: context for peer, context in state.remotes.items() if peer != name.peer}
    return change(state, remotes=remotes, closed=((*(state.closed or ()), closed))[-KEPT_CLOSED:])


def _remember(
    state: ThreadRecord, name: str, changed: ArtifactChanged, event: Event
) -> ThreadRecord:
    task_id = event.fact.scope.task_id or ""
    named = NamedArtifact(changed.artifact_id, task_id, changed.version)
    return change(state, artifacts=_keep(state.artifacts, name, named))


def _keep(
    known: Mapping[str, NamedArtifact], name: str, named: NamedArtifact
) -> dict[str, NamedArtifact]:
    others = [one for one in known.items() if one[0] != name][1 - KEPT_NAMES :]
    return dict([*others, (name, named)])


def _end(state: ThreadRecord, turn_id: str, outcome: str) -> ThreadRecord:
    active = tuple(turn for turn in state.active_turns if turn != turn_id)
    status = ThreadStatus.RUNNING if active else ThreadStatus.IDLE
    return change(state, active_turns=active, status=status, last_outcome=outcome)
