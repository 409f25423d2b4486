"""The output of a run: status, the exchange with the agent, artifacts, large output (EVC-5, EVC-6, EVC-14, EXT-10)."""

from __future__ import annotations

from typing import ClassVar, Final, Literal, TypeAlias

from passerelle.core.event_type import EventType
from passerelle.core.facts import ErrorDetail
from passerelle.core.task.status import PhaseName
from passerelle.core.wire.json import JsonObject
from passerelle.core.wire.record import record


@record
class RunStatus:
    """A status message of an agent, with its raw state; by itself it never changes the task's status (EVC-5).

    ``text`` is its text. ``title``, ``detail``, ``phase`` and ``checkpoints`` are the readable members of these names
    in its metadata; ``metadata`` is that metadata, unless it is too large.

    ``remote_task_id`` and ``remote_context_id`` are set when the agent first sent them.
    """

    type: ClassVar = EventType.RUN_STATUS
    native_status: str | None = None
    text: str | None = None
    message_id: str | None = None
    phase: PhaseName | None = None
    remote_task_id: str | None = None
    remote_context_id: str | None = None
    delivery_mechanism: (
        Literal["unary", "streaming", "subscription", "polling", "push", "custom"] | None
    ) = None
    taken_over: Literal[True] | None = None
    """The run has another driver: sends of the previous driver either left before this, or never will."""
    broke: Literal[True] | None = None
    """The agent's event stream ended before the run did."""
    stalled: Literal[True] | None = None
    """No progress since then, and callers were notified; a caller that waits for an answer gets it now."""
    title: str | None = None
    detail: str | None = None
    checkpoints: tuple[str, ...] | None = None
    metadata: JsonObject | None = None
    refused: ErrorDetail | None = None
    """Why the agent refused the last message; the run goes on without it."""
    waits_on: str | None = None
    """The agent's native state from now on, while its task still waits: it refused an answer."""


@record
class ModelRequested:
    """A message is about to be sent to the agent (EVC-6): the intent, stored before each attempt.

    If the outcome is unknown, ``message_id`` finds the message at the agent. The first one of a run is stored with its
    start, or, if policy must allow the message first, when it does.
    """

    type: ClassVar = EventType.MODEL_REQUESTED
    peer: str
    method: str
    message_id: str
    updated_input: str | None = None
    """SHA-256 of the message as a hook changed it."""


def request(
    peer: str, mechanism: str | None, message_id: str, updated_input: str | None = None
) -> ModelRequested:
    """The intent to send a message, by the delivery mechanism of its run."""
    method = "SendStreamingMessage" if mechanism == "streaming" else "SendMessage"
    return ModelRequested(peer, method, message_id, updated_input)


@record
class ModelDelta:
    """A chunk of streamed text for an artifact (EVC-6); published only, never stored.

    ``block`` is ``<facade id>/<artifact id>``. With ``at`` 0 the text starts the block again; otherwise it is appended
    to a block of ``at`` characters (Unicode code points), and dropped if the block has more or fewer.
    """

    type: ClassVar = EventType.MODEL_DELTA
    text: str
    block: str
    at: int = 0


@record
class ModelCompleted:
    """The agent has answered: its run has ended, or it asks for input (EVC-6).

    It may have taken several connections. ``frames`` counts the run's frames with content before this one.
    """

    type: ClassVar = EventType.MODEL_COMPLETED
    peer: str
    frames: int


@record
class ModelFailed:
    """The exchange with the peer broke, or was refused; the task may go on (I6)."""

    type: ClassVar = EventType.MODEL_FAILED
    peer: str
    error: ErrorDetail


COPY: Final = "copy."
"""Prefix of the references to copies of an artifact's files; a number follows."""


@record
class ArtifactChanged:
    """One complete artifact (EVC-14, A2A-10); ``stored`` if none of its content must still be fetched.

    ``artifact_id`` is the gateway's id (ID-11), ``name_at_peer`` the agent's; ``sha256`` is over the canonical JSON of
    its joined parts. The content is in the events of its task up to this one, or in ``refs.artifact``.
    """

    type: ClassVar = EventType.ARTIFACT_CHANGED
    artifact_id: str
    name_at_peer: str
    version: int
    sha256: str
    size: int
    parts: int
    media_types: tuple[str, ...] = ()
    name: str | None = None
    direction: Literal["produced", "consumed"] = "produced"
    stored: bool = True
    replaces: str | None = None
    """The artifact that this version replaces: itself, or one of the same name from an earlier task of the context
    (LT-17). ``version`` counts on from there.
    """
    awaited: Literal[1, -1] | None = None
    """For an artifact that the record only counts: 1 when the task starts to wait for its files, -1 when it stops."""
    linked: Literal[True] | None = None
    """For an artifact that the record only counts: the task has an edge to it. Facts of older versions have none."""


@record
class OutputSpilled:
    """Content over the limit of a fact was moved to the blob store; ``refs.output`` names it (ENV-11)."""

    type: ClassVar = EventType.OUTPUT_SPILLED
    of: Literal["message", "status", "artifact", "raw"]
    size: int
    sha256: str


@record
class OutputTruncated:
    """Content over the hard limit was cut."""

    type: ClassVar = EventType.OUTPUT_TRUNCATED
    of: str
    size: int
    kept: int


@record
class OutputRedacted:
    """A pattern was removed from content."""

    type: ClassVar = EventType.OUTPUT_REDACTED
    of: str
    rule: str
    count: int


@record
class OutputExpired:
    """Content behind a ref has been removed by age."""

    type: ClassVar = EventType.OUTPUT_EXPIRED
    of: str
    sha256: str


RunPayload: TypeAlias = (
    RunStatus
    | ModelRequested
    | ModelDelta
    | ModelCompleted
    | ModelFailed
    | ArtifactChanged
    | OutputSpilled
    | OutputTruncated
    | OutputRedacted
    | OutputExpired
)
