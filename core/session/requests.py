"""Requests of a caller about its sessions, their threads and turns. Each class is also the wire form."""

from __future__ import annotations

from dataclasses import field
from typing import Annotated, Final, Literal, TypeAlias

from pydantic import Field

from passerelle.core.payloads.conversation import QueuePolicy
from passerelle.core.task.requests import PAGE_LIMIT, Id, ReasonText, RecordVersion, Title
from passerelle.core.wire.json import JsonObject
from passerelle.core.wire.record import record

Labels: TypeAlias = Annotated[
    dict[
        Annotated[str, Field(min_length=1, max_length=63)],
        Annotated[str, Field(max_length=255)],
    ],
    Field(max_length=32),
]


@record
class OpenSession:
    """Open a session with a title; contexts are added to it by its id (EVC-1)."""

    title: Title
    labels: Labels = field(default_factory=dict[str, str])


@record
class DescribeSession:
    """Change title or labels; a label with an empty text is removed, an absent member stays."""

    session_id: Id
    version: RecordVersion | None = None
    title: Title | None = None
    labels: Labels = field(default_factory=dict[str, str])


@record
class InterruptTurn:
    """Stop the active turns of a session, of one thread, or one turn (CMD-2)."""

    session_id: Id
    thread_id: Id | None = None
    turn_id: Id | None = None
    reason: ReasonText | None = None


@record
class ResumeThread:
    """Attach to a thread's runs that no instance follows, and continue its waiting turns (CMD-3)."""

    thread_id: Id
    resume_token: Annotated[str, Field(min_length=1, max_length=64)] | None = None
    """The caller's position: the token of an earlier resume, or a cursor of the session's stream."""


@record
class RollBackThread:
    """Roll back to the end of a turn: later turns stay readable, and new turns begin without them (EXT-11)."""

    thread_id: Id
    to_turn: Id
    reason: ReasonText | None = None


SUMMARY_LENGTH: Final = 32_768
"""Characters of a summary."""


@record
class SummaryArtifact:
    """An artifact of a task of the caller whose texts are the summary."""

    task_id: Id
    artifact_id: Id


@record
class CompactThread:
    """Replace everything up to the end of a turn by a summary: ``text``, or that of an artifact (EVC-13)."""

    thread_id: Id
    to_turn: Id
    text: Annotated[str, Field(min_length=1, max_length=SUMMARY_LENGTH)] | None = None
    artifact: SummaryArtifact | None = None


@record
class PromoteQueuedTurn:
    """Move a queued turn of a context to the front."""

    thread_id: Id
    queued_turn_id: Id


@record
class RemoveQueuedTurn:
    """Remove a queued turn of a context: its task is cancelled."""

    thread_id: Id
    queued_turn_id: Id
    reason: ReasonText | None = None


@record
class SetQueuePolicy:
    """The queue policy of a context, for messages that set none themselves."""

    thread_id: Id
    policy: QueuePolicy


@record
class GetTurnQueue:
    """The queued turns of a context (SNAP-4)."""

    thread_id: Id


@record
class QueuedTurn:
    """A queued turn. ``resume_state`` is ``waiting``, or ``held`` while its task is paused.

    ``behind`` are the turns that go first: the active ones, or the previous one in the queue.
    """

    turn_id: str
    task_id: str
    position: int
    agent: str
    source: str
    since: str
    resume_state: Literal["waiting", "held"]
    promoted: bool = False
    status: Literal["queued"] = "queued"
    reason: str | None = None
    behind: tuple[str, ...] = ()


@record
class GatedTurn:
    """A started turn whose message is sent once ``action_id`` is approved, as ``rules`` or a hook require.

    ``since`` is the opening of the approval, RFC 3339. No other turn waits for it: its caller has its answer, the
    waiting task.
    """

    turn_id: str
    task_id: str
    agent: str
    source: str
    since: str
    action_id: str
    reason: str
    rules: tuple[str, ...] = ()
    status: Literal["queued"] = "queued"


@record
class TurnQueue:
    """The queued turns of a context, in order, and its queue policy."""

    thread_id: str
    policy: QueuePolicy
    turns: tuple[QueuedTurn, ...] = ()
    active_turns: tuple[str, ...] = ()
    gated: tuple[GatedTurn, ...] = ()


TurnQueueQuery: TypeAlias = GetTurnQueue
SessionRequest: TypeAlias = (
    OpenSession
    | DescribeSession
    | InterruptTurn
    | ResumeThread
    | RollBackThread
    | CompactThread
    | PromoteQueuedTurn
    | RemoveQueuedTurn
    | SetQueuePolicy
)


@record
class ListSessions:
    """Sessions of the caller, newest activity first."""

    page_size: Annotated[int, Field(ge=1, le=PAGE_LIMIT)] = 50
    page_token: Annotated[str, Field(max_length=512)] | None = None


@record
class SessionChanged:
    """The record after a command, and its version; ``repeated``: the command was executed before."""

    session: JsonObject
    version: int
    repeated: bool = False


@record
class TurnInterrupted:
    """``accepted``: these tasks are being stopped; ``no_op``: no turn was active."""

    outcome: Literal["accepted", "no_op"]
    tasks: tuple[str, ...] = ()


@record
class ResumedTask:
    """``attached``: followed here; ``elsewhere``: another instance has it; ``held``: it is paused or blocked."""

    task_id: str
    status: str
    outcome: Literal["attached", "elsewhere", "held"]


@record
class ThreadResumed:
    """The result for each task of the thread whose run has not ended, as of ``resume_token``."""

    thread_id: str
    tasks: tuple[ResumedTask, ...] = ()
    waiting_turns: int = 0
    """Turns that wait for others of the thread."""
    resume_token: str | None = None
    """A cursor of the session's stream from which the caller misses nothing; also the token of the next resume."""
    resumed: Literal["exact", "gap"] | None = None
    """Whether all new events can be read after the caller's token; None: it gave none."""
    missed: int | None = None
    """Events of the session after that token."""
    gap: str | None = None
    """Why they cannot be read: start again with a snapshot of the session."""


@record
class ThreadRolledBack:
    """The state of a thread: ``no_op`` if there was nothing after the turn. ``covers`` is the event that ended it.

    ``turns`` and ``tasks`` are rolled back; ``renewed`` are the agents that get a new context with their next turn.
    """

    thread_id: str
    outcome: Literal["rolled_back", "no_op"]
    to_turn: str
    covers: int
    boundary_id: str | None = None
    turns: tuple[str, ...] = ()
    tasks: tuple[str, ...] = ()
    renewed: tuple[str, ...] = ()
    repeated: bool = False


@record
class ThreadCompacted:
    """The boundary: the summary replaces the events ``first`` to ``covers``, which all stay stored."""

    thread_id: str
    boundary_id: str
    to_turn: str
    first: int
    covers: int
    sha256: str
    summarized_by: str
    still_open: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    repeated: bool = False
