"""What a caller can ask of its sessions, their threads and their turns. Each is the form in which it is sent, too."""

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
    """A session with a name; contexts are put into it by its id (EVC-1)."""

    title: Title
    labels: Labels = field(default_factory=dict[str, str])


@record
class DescribeSession:
    """Another title, other labels; a label with an empty text goes away, and what is left out stays."""

    session_id: Id
    version: RecordVersion | None = None
    title: Title | None = None
    labels: Labels = field(default_factory=dict[str, str])


@record
class InterruptTurn:
    """Stop what the turns of a session, of one thread or one turn of it wait for (CMD-2)."""

    session_id: Id
    thread_id: Id | None = None
    turn_id: Id | None = None
    reason: ReasonText | None = None


@record
class ResumeThread:
    """Attach to what agents do for a thread, wherever nobody does, and have the turns go on that wait (CMD-3)."""

    thread_id: Id
    resume_token: Annotated[str, Field(min_length=1, max_length=64)] | None = None
    """Where its caller stands: the token of an earlier resume, or a cursor of the session's stream."""


@record
class RollBackThread:
    """Go back to the end of a turn: what came behind it stays readable, and later turns begin without it (EXT-11)."""

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
    """Has a summary stand for what came up to the end of a turn: ``text``, or that of an artifact (EVC-13)."""

    thread_id: Id
    to_turn: Id
    text: Annotated[str, Field(min_length=1, max_length=SUMMARY_LENGTH)] | None = None
    artifact: SummaryArtifact | None = None


@record
class PromoteQueuedTurn:
    """Have a turn that waits in a context go before all others that do."""

    thread_id: Id
    queued_turn_id: Id


@record
class RemoveQueuedTurn:
    """Take a turn out that waits in a context: its task is cancelled."""

    thread_id: Id
    queued_turn_id: Id
    reason: ReasonText | None = None


@record
class SetQueuePolicy:
    """What becomes of messages to a context that works, unless they say so themselves."""

    thread_id: Id
    policy: QueuePolicy


@record
class GetTurnQueue:
    """The turns of a context that wait (SNAP-4)."""

    thread_id: Id


@record
class QueuedTurn:
    """A turn that waits. ``resume_state`` is ``waiting``, or ``held`` while its task is paused.

    ``behind`` are the turns that go first: those under way, or the one before it in the line.
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
    """A turn that has started and whose message is sent once ``action_id`` is approved, as ``rules`` or a hook want.

    ``since`` is when that was asked, RFC 3339. No other turn waits for it: its caller has its answer, the task that
    waits.
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
    """Those that wait in a context, in their order, and what becomes of further messages."""

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
    """Sessions of the caller, those with the newest activity first."""

    page_size: Annotated[int, Field(ge=1, le=PAGE_LIMIT)] = 50
    page_token: Annotated[str, Field(max_length=512)] | None = None


@record
class SessionChanged:
    """The record after a command, and its version; ``repeated``: the command had been carried out before."""

    session: JsonObject
    version: int
    repeated: bool = False


@record
class TurnInterrupted:
    """``accepted``: these tasks are told to stop; ``no_op``: nothing was under way."""

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
    """What became of each task of the thread whose run has not ended, as everything stood at ``resume_token``."""

    thread_id: str
    tasks: tuple[ResumedTask, ...] = ()
    waiting_turns: int = 0
    """Turns that wait for others of the thread."""
    resume_token: str | None = None
    """The cursor of the session's stream from which its caller misses nothing, and the token of the next resume."""
    resumed: Literal["exact", "gap"] | None = None
    """Whether all that is new to its caller can be read behind the token that it gave; None: it gave none."""
    missed: int | None = None
    """Events of the session behind that token."""
    gap: str | None = None
    """Why they cannot be read: begin anew with a snapshot of the session."""


@record
class ThreadRolledBack:
    """Where a thread stands: ``no_op`` where nothing stood behind the turn. ``covers`` is the fact that ended it.

    ``turns`` and ``tasks`` are left behind; ``renewed`` are the agents that get another context with their next turn.
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
    """The boundary: the summary stands for the facts ``first`` to ``covers``, and all of them are still there."""

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
