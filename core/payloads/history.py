"""Old sessions, rollback, repair, and what was exported from the log (EVC-15, EXT-11, CHN-4).

Sequences are of the session's stream; ``boundary_id`` names a stable place in it (PRS-5).
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

    ``sha256`` is that of its manifest. ``proof`` is what the chain of the stream says of the facts in it, ``traces``
    are those that they are parts of, ``notes`` what is missing in it or open.
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
    """A page of an old session was read (EXT-11, CMD-16), told in the home session of the reader once in an hour.

    ``of`` is the task or the session, and ``first`` to ``last`` are the sequences that the first page of the hour had.
    With ``owner`` it is the audit of whoever read what is somebody else's: that is the key of its owner then.
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
    """A read model was made anew out of archive and stream (EXT-11).

    ``first`` and ``last`` are the range that was read for it. For a rollback ``model`` is ``thread``, and ``sha256`` is
    that of the ``ThreadState`` that stands from then on, as its canonical bytes are written.
    """

    type: ClassVar = EventType.HISTORY_RECONSTRUCTED
    model: str
    cause: Literal["missing", "trimmed", "crashed", "upgraded", "rollback"]
    first: int
    last: int
    sha256: str


@record
class ThreadState:
    """What a thread knows of its turns, as it stands at a boundary (PRS-5). ``turns`` counts those that stand."""

    turns: int
    last_outcome: str | None = None
    catalog: str | None = None
    artifacts: dict[str, NamedArtifact] = field(default_factory=dict[str, NamedArtifact])
    refusals: dict[str, ErrorDetail] = field(default_factory=dict[str, ErrorDetail])
    compactions: tuple[CompactedTurns, ...] = ()


@record
class RollbackStarted:
    """A thread is about to go back to the end of ``to_turn`` (EXT-11).

    ``turns`` and ``tasks`` are left behind, in the order in which they came.
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
    """It has; the turns left behind stay in the log and out of the read model (EXT-11).

    ``covers`` is the fact with which ``to_turn`` ended. ``renewed`` are the agents that were told of what is left
    behind: none can forget it, so the next turn at each of them has another context there (A2A-4).
    """

    type: ClassVar = EventType.HISTORY_ROLLBACK_COMPLETED
    boundary_id: str
    to_turn: str
    covers: int
    state: ThreadState
    renewed: tuple[str, ...] = ()


@record
class SnapshotRepaired:
    """Replay was not possible and a snapshot took its place (EXT-11, CHN-4).

    ``channel_id`` is the reader that was repaired; without one, ``model`` names the stored snapshot that was.
    ``times`` counts what was folded into this fact; at most 16 repairs are listed.
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
