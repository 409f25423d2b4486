"""What can be asked about evidence, and what is answered. Each is the form in which it is sent, too."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Final

from pydantic import Field

from passerelle.core.errors import InvalidInput
from passerelle.core.evidence.record import BundleKind, ScopeKind
from passerelle.core.task.requests import Id
from passerelle.core.wire.record import record

PART_BYTES: Final = 1024 * 1024
"""Bytes of a bundle that one answer holds."""


@record
class ExportParams:
    """Of what: one of session, thread and task; of a session or thread perhaps one turn alone.

    ``through`` is the last sequence that may be in it. Without it the bundle ends with the last fact of its scope that
    no export has written, so two exports of what has not changed are one.
    """

    session_id: Id | None = None
    thread_id: Id | None = None
    turn_id: Id | None = None
    task_id: Id | None = None
    through: Annotated[int, Field(ge=1)] | None = None


@dataclass(frozen=True, slots=True)
class ExportBundle:
    """Make a bundle of facts that can be checked elsewhere, and record it (CMD-20, CMD-26)."""

    kind: BundleKind
    of: ExportParams

    @property
    def scope(self) -> ScopeKind:
        """The narrowest scope that is named.

        Raises:
            InvalidInput: not exactly one of session, thread and task is, or a turn of a task.
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
    """A part of a bundle, at most ``limit`` bytes from ``offset`` on; ``sessionId`` or ``taskId`` says whose it is."""

    evidence_id: Id
    session_id: Id | None = None
    task_id: Id | None = None
    offset: Annotated[int, Field(ge=0)] = 0
    limit: Annotated[int, Field(ge=1, le=PART_BYTES)] = PART_BYTES // 4


@record
class BundleContent:
    """The part in base64; ``size`` is that of the whole file, ``sha256`` its hash."""

    evidence_id: str
    sha256: str
    size: int
    offset: int
    content: str


@record
class BundleExported:
    """A bundle as it is stored. ``sha256`` is that of its manifest: the same scope at the same sequence has the same.

    ``blob`` and ``size`` are those of the file, ``notes`` say what is missing in it or open. ``repeated``: it had been
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
