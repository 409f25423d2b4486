"""Old sessions, rollback, repair, and exports of the log (EVC-15, EXT-11, CHN-4).

Sequences are of the session's stream; ``boundary_id`` names a stable position in it (PRS-5).
"""

from __future__ import annotations

from dataclasses import field
from typing import ClassVar, Literal, TypeAlias

from passerelle.core.event_type import EventType
from passerelle.core.facts import CompactedTurns, ErrorDetail, NamedArtifact
from passerelle.core.wire.record import record


@record
class Repair:
    """A stream that could not be continued: its reader held ``from_sequence`` and got a snapshot at ``to_sequence``."""

    stream: str
    from_sequence: int
    to_sequence: int
    reason: Literal["trimmed", "epoch", "ahead", "forked", "lost", "limit", "slow", "mismatch"]


@record
class EvidenceChanged:
    """A bundle was exported, or one from elsewhere seen; ``first`` and ``covers`` are its range of sequences (EVC-15).

    ``sha256`` is the hash of its manifest. ``proof`` is the state of the chain over its facts, ``traces`` are their
    trace ids, ``notes`` list what is missing in it or open.
    """

    type: ClassVar = EventType.EVIDENCE_CHANGED
    evidence_id: str
    kind: Literal["evidence", "replay", "review"]
    change: Literal["exported", "seen"]
    scope: Literal["session", "thread", "turn", "task"]
    subject: str
    sha256: str
    covers: int
    first: int = 1
    proof: Literal["whole", "trimmed", "broken"] = "whole"
    traces: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


@record
class HistoryWindowLoaded:
    """A page of an old session was read (EXT-11, CMD-16); recorded in the reader's home session once an hour.

    ``of`` is the task or the session, and ``first`` to ``last`` are the sequences of the hour's first page. With
    ``owner``, the key of the owner, it audits a read of another owner's content.
    """

    type: ClassVar = EventType.HISTORY_WINDOW_LOADED
    first: int
    last: int
    source: Literal["stream", "archive", "both"]
    next_cursor: str | None = None
    of: str | None = None
    owner: str | None = None


@record
class HistoryReconstructed:
    """A read model was rebuilt from archive and stream (EXT-11).

    ``first`` and ``last`` are the range that was read. For a rollback ``model`` is ``thread``, and ``sha256`` is the
    hash of the canonical bytes of the resulting ``ThreadState``.
    """

    type: ClassVar = EventType.HISTORY_RECONSTRUCTED
    model: str
    cause: Literal["missing", "trimmed", "crashed", "upgraded", "rollback"]
    first: int
    last: int
    sha256: str


@record
class ThreadState:
    """The state of a thread's turns at a boundary (PRS-5). ``turns`` counts those that were not rolled back."""

    turns: int
    last_outcome: str | None = None
    catalog: str | None = None
    artifacts: dict[str, NamedArtifact] = field(default_factory=dict[str, NamedArtifact])
    refusals: dict[str, ErrorDetail] = field(default_factory=dict[str, ErrorDetail])
    compactions: tuple[CompactedTurns, ...] = ()


@record
class RollbackStarted:
    """A thread is about to be rolled back to the end of ``to_turn`` (EXT-11).

    ``turns`` and ``tasks`` are rolled back, in the order in which they were submitted.
    """

    type: ClassVar = EventType.HISTORY_ROLLBACK_STARTED
    boundary_id: str
    to_turn: str
    turns: tuple[str, ...]
    actor: str
    reason: str | None = None
    tasks: tuple[str, ...] = ()


@record
class RollbackCompleted:
    """The rollback is done; rolled back turns stay in the log and leave the read model (EXT-11).

    ``covers`` is the event that ended ``to_turn``. ``renewed`` are the agents that received rolled back messages: no
    agent can forget them, so its next turn uses a new context there (A2A-4).
    """

    type: ClassVar = EventType.HISTORY_ROLLBACK_COMPLETED
    boundary_id: str
    to_turn: str
    covers: int
    state: ThreadState
    renewed: tuple[str, ...] = ()


@record
class SnapshotRepaired:
    """Replay was not possible and a snapshot replaced it (EXT-11, CHN-4).

    ``channel_id`` is the repaired reader; without one, ``model`` names the repaired snapshot. ``times`` counts the
    facts merged into this one; at most 16 repairs are listed.
    """

    type: ClassVar = EventType.SNAPSHOT_REPAIRED
    repairs: tuple[Repair, ...]
    channel_id: str | None = None
    model: str | None = None
    times: int = 1


HistoryPayload: TypeAlias = (
    EvidenceChanged
    | HistoryWindowLoaded
    | HistoryReconstructed
    | RollbackStarted
    | RollbackCompleted
    | SnapshotRepaired
)
