"""The subprocess of a local worker (EXT-4, PRS-2, CMD-23). Frames of its protocol are not its output."""

from __future__ import annotations

from typing import ClassVar, Literal, TypeAlias

from passerelle.core.event_type import EventType
from passerelle.core.facts import ErrorDetail
from passerelle.core.wire.record import record


@record
class ProcessStarted:
    """A process runs; ``environment`` holds names, never values (EXT-4)."""

    type: ClassVar = EventType.PROCESS_STARTED
    process_id: str
    argv: tuple[str, ...]
    cwd: str
    pid: int
    pty: bool = False
    long_running: bool = False
    environment: tuple[str, ...] = ()
    network: Literal["none", "loopback", "allow_list", "open"] | None = None


@record
class ProcessOutput:
    """``size`` bytes were written from ``offset`` on; the log is in ``refs.output`` (EXT-4, PO-5)."""

    type: ClassVar = EventType.PROCESS_OUTPUT
    process_id: str
    channel: Literal["stdout", "stderr"]
    offset: int
    size: int
    preview: str | None = None


@record
class ProcessInput:
    """``size`` bytes were written to its stdin; they are in ``refs.input`` (EXT-4)."""

    type: ClassVar = EventType.PROCESS_INPUT
    process_id: str
    actor: str
    size: int


@record
class ProcessCompleted:
    """The process exited with status 0 (EXT-4)."""

    type: ClassVar = EventType.PROCESS_COMPLETED
    process_id: str
    duration_ms: int
    exit_code: Literal[0] = 0


@record
class ProcessFailed:
    """The process exited with another status, or could not be started (EXT-4)."""

    type: ClassVar = EventType.PROCESS_FAILED
    process_id: str
    error: ErrorDetail
    exit_code: int | None = None
    signal: str | None = None
    duration_ms: int | None = None


@record
class ProcessTerminated:
    """The gateway ended the process (EXT-4)."""

    type: ClassVar = EventType.PROCESS_TERMINATED
    process_id: str
    actor: str
    reason: str
    signal: str
    duration_ms: int | None = None


ProcessPayload: TypeAlias = (
    ProcessStarted
    | ProcessOutput
    | ProcessInput
    | ProcessCompleted
    | ProcessFailed
    | ProcessTerminated
)
