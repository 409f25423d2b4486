"""The session machine: a caller's durable conversation container, and the unit of order (ID-2).

A session is opened once, by its first message or explicitly; after that only its title and labels change. ``TABLE`` has
two rows.
"""

from __future__ import annotations

from dataclasses import field
from enum import StrEnum
from typing import TYPE_CHECKING, Final, TypeAlias

from passerelle.core.errors import InvalidInput, NotFound
from passerelle.core.events import Fact
from passerelle.core.evidence.record import KEPT_BUNDLES, REF, ExportedBundle
from passerelle.core.facts import Scope
from passerelle.core.frozen import frozen
from passerelle.core.job import machine as jobs
from passerelle.core.job.machine import JobState
from passerelle.core.payloads.conversation import SessionCreated, SessionUpdated, ThreadStarted
from passerelle.core.payloads.history import EvidenceChanged
from passerelle.core.payloads.limit import AgentState, LimitChanged
from passerelle.core.payloads.task import TaskUpdated
from passerelle.core.schedule import machine as schedules
from passerelle.core.schedule.machine import ScheduleState, ScheduleStatus
from passerelle.core.wire.record import change, record

if TYPE_CHECKING:
    from passerelle.core.events import Event

SCHEMA: Final = 1
_LISTED_THREADS: Final = 64


class SessionStatus(StrEnum):
    """A session is open as long as it is kept."""

    OPEN = "open"


@record
class PausedAgent:
    """An agent that gets no new work. ``at`` is RFC 3339."""

    state: AgentState
    by: str
    at: str
    reason: str | None = None


@record
class SessionRecord:
    """One session. ``threads`` are the newest 64; ``thread_count`` counts all."""

    schema: int
    session_id: str
    owner: str
    tenant: str
    principal: str
    created_at: str
    updated_at: str
    last: int
    title: str | None = None
    labels: dict[str, str] = field(default_factory=dict[str, str])
    threads: tuple[str, ...] = ()
    thread_count: int = 0
    given: tuple[str, ...] = ()
    """Its tasks that were transferred to another owner: the owner of the session may not read their events."""
    bundles: tuple[ExportedBundle, ...] | None = None
    """The newest bundles exported of it, except those of transferred tasks; None: none."""
    schedule: ScheduleState | None = None
    """The schedule of this session; its runs are the session's tasks."""
    job: JobState | None = None
    """The job of this session; its items are tasks of other sessions."""
    pauses: dict[str, PausedAgent] | None = None
    """For the home session of the gateway's owner: the agents that get no new work, by name; None: all do."""

    @property
    def ticks(self) -> bool:
        """Whether it has a schedule that is not deleted."""
        return self.schedule is not None and self.schedule.status is not ScheduleStatus.DELETED


@frozen
class BeginSession:
    """Opens a session."""

    session_id: str
    created: SessionCreated


@frozen
class RelabelSession:
    """Changes title or labels; an empty text removes a label."""

    updated: SessionUpdated


SessionCommand: TypeAlias = BeginSession | RelabelSession

TABLE: Final[dict[type[SessionCommand], dict[SessionStatus | None, frozenset[SessionStatus]]]] = {
    BeginSession: {None: frozenset({SessionStatus.OPEN})},
    RelabelSession: {SessionStatus.OPEN: frozenset({SessionStatus.OPEN})},
}


def decide(state: SessionRecord | None, command: SessionCommand) -> list[Fact]:
    """The facts of a command.

    Raises:
        InvalidInput: the session exists already.
        NotFound: the session to change does not exist.
    """
    if isinstance(command, BeginSession):
        if state is not None:
            raise InvalidInput("sessionId", "the session exists")
        return [Fact(Scope(command.session_id), command.created)]
    if state is None:
        raise NotFound("session", "")
    return [Fact(Scope(state.session_id), command.updated)]


FOLDED: Final[frozenset[type]] = frozenset(
    {SessionCreated, SessionUpdated, ThreadStarted, TaskUpdated, EvidenceChanged, LimitChanged}
    | jobs.FOLDED
)


def folds_session(event: Event) -> bool:
    """Whether the event changes the record of its session."""
    payload = event.fact.payload
    if isinstance(payload, TaskUpdated):
        return payload.new_owner is not None
    if isinstance(payload, LimitChanged):
        return payload.agent_state is not None
    return type(payload) in FOLDED


def evolve(state: SessionRecord | None, event: Event) -> SessionRecord | None:
    """The record after an event; total."""
    payload = event.fact.payload
    if state is not None and event.sequence <= state.last:
        return state
    if isinstance(payload, SessionCreated):
        return state or SessionRecord(
            schema=SCHEMA,
            session_id=event.fact.scope.session_id,
            owner=payload.owner,
            tenant=payload.tenant,
            principal=payload.principal,
            title=payload.title,
            labels=payload.labels or {},
            created_at=event.timestamp,
            updated_at=event.timestamp,
            last=event.sequence,
        )
    if state is None:
        return None
    if type(payload) in jobs.FOLDED:
        job = jobs.evolve(state.job, event)
        return change(state, updated_at=event.timestamp, last=event.sequence, job=job)
    moved = change(state, updated_at=event.timestamp, last=event.sequence)
    if isinstance(payload, SessionUpdated):
        return change(
            moved,
            title=payload.title if payload.title is not None else state.title,
            labels={
                name: text for name, text in {**state.labels, **payload.labels}.items() if text
            },
            schedule=schedules.evolve(state.schedule, payload.schedule, event.sequence)
            if payload.schedule is not None
            else state.schedule,
        )
    if isinstance(payload, ThreadStarted):
        thread = event.fact.scope.thread_id or ""
        return change(
            moved,
            threads=(*state.threads, thread)[-_LISTED_THREADS:],
            thread_count=state.thread_count + 1,
        )
    if isinstance(payload, EvidenceChanged):
        return moved if event.fact.scope.task_id in state.given else _keep_bundle(moved, event)
    if isinstance(payload, LimitChanged) and payload.agent_state is not None:
        return change(moved, pauses=_pause(state, payload, event))
    if isinstance(payload, TaskUpdated) and payload.new_owner is not None:
        task = event.fact.scope.task_id or ""
        others = tuple(one for one in state.given if one != task)
        return change(
            moved, given=others if payload.new_owner == state.principal else (*others, task)
        )
    return state


def _pause(
    state: SessionRecord, changed: LimitChanged, event: Event
) -> dict[str, PausedAgent] | None:
    others = {
        name: one for name, one in (state.pauses or {}).items() if name != changed.limited.name
    }
    if changed.agent_state is not None and changed.agent_state != "active":
        others[changed.limited.name] = PausedAgent(
            changed.agent_state, changed.actor, event.timestamp, changed.reason
        )
    return others or None


def _keep_bundle(state: SessionRecord, event: Event) -> SessionRecord:
    changed, ref = event.fact.payload, event.fact.refs.get(REF)
    if not isinstance(changed, EvidenceChanged) or ref is None:
        return state
    bundle = ExportedBundle(
        evidence_id=changed.evidence_id,
        kind=changed.kind,
        scope=changed.scope,
        subject=changed.subject,
        first=changed.first,
        covers=changed.covers,
        sha256=changed.sha256,
        blob=ref.blob or "",
        size=ref.size or 0,
        proof=changed.proof,
        at=event.timestamp,
        traces=changed.traces,
        notes=changed.notes,
    )
    others = tuple(one for one in state.bundles or () if one.evidence_id != changed.evidence_id)
    return change(state, bundles=(*others, bundle)[-KEPT_BUNDLES:])
