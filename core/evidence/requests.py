"""Requests about evidence and their answers. Each class is also the wire form."""

from __future__ import annotations

from typing import Annotated, Final

from pydantic import Field

from passerelle.core.errors import InvalidInput
from passerelle.core.evidence.record import BundleKind, ScopeKind
from passerelle.core.frozen import frozen
from passerelle.core.task.requests import Id
from passerelle.core.wire.record import record

PART_BYTES: Final = 1024 * 1024
"""Maximum bytes of a bundle in one answer."""


@record
class ExportParams:
    """The scope: exactly one of session, thread and task; for a session or thread optionally one turn.

    ``through`` is the last sequence that may be included. Without it the bundle ends with the last fact of its scope
    that no export wrote, so two exports of an unchanged scope are identical.
    """

    session_id: Id | None = None
    thread_id: Id | None = None
    turn_id: Id | None = None
    task_id: Id | None = None
    through: Annotated[int, Field(ge=1)] | None = None


@frozen
class ExportBundle:
    """Make a bundle of facts that can be verified elsewhere, and record it (CMD-20, CMD-26)."""

    kind: BundleKind
    of: ExportParams

    @property
    def scope(self) -> ScopeKind:
        """The narrowest scope that is named.

        Raises:
            InvalidInput: not exactly one of session, thread and task, or a turn together with a task.
        """
        ids: tuple[tuple[ScopeKind, str | None], ...] = (
            ("session", self.of.session_id),
            ("thread", self.of.thread_id),
            ("task", self.of.task_id),
        )
        named: list[ScopeKind] = [kind for kind, one in ids if one is not None]
        if len(named) != 1:
            raise InvalidInput(
                "sessionId", "exactly one of sessionId, threadId and taskId is required"
            )
        if self.of.turn_id is None:
            return named[0]
        if self.of.task_id is not None:
            raise InvalidInput("turnId", "goes with sessionId or threadId")
        return "turn"


@record
class GetBundle:
    """A part of a bundle, at most ``limit`` bytes from ``offset`` on; ``sessionId`` or ``taskId`` names its scope."""

    evidence_id: Id
    session_id: Id | None = None
    task_id: Id | None = None
    offset: Annotated[int, Field(ge=0)] = 0
    limit: Annotated[int, Field(ge=1, le=PART_BYTES)] = PART_BYTES // 4


@record
class BundleContent:
    """The part in base64; ``size`` and ``sha256`` are those of the whole file."""

    evidence_id: str
    sha256: str
    size: int
    offset: int
    content: str


@record
class BundleExported:
    """A stored bundle. ``sha256`` is the hash of its manifest: equal for the same scope at the same sequence.

    ``blob`` and ``size`` are those of the file, ``notes`` list what is missing in it or open. ``repeated``: it was
    exported before.
    """

    evidence_id: str
    kind: BundleKind
    scope: ScopeKind
    subject: str
    session_id: str
    first: int
    covers: int
    sha256: str
    blob: str
    size: int
    notes: tuple[str, ...] = ()
    repeated: bool = False
