"""What a run brings: status, the exchange with the peer, artifacts, large output (EVC-5, EVC-6, EVC-14, EXT-10)."""

from __future__ import annotations

from typing import ClassVar, Final, Literal, TypeAlias

from passerelle.core.event_type import EventType
from passerelle.core.facts import ErrorDetail
from passerelle.core.task.status import PhaseName
from passerelle.core.wire.json import JsonObject
from passerelle.core.wire.record import record


@record
class RunStatus:
    """Words of a peer, with its raw state; never a change of status by itself (EVC-5).

    ``text`` is what it says. ``title``, ``detail``, ``phase`` and ``checkpoints`` are what stands under these names in
    the metadata of its status, as far as they can be read; ``metadata`` is that metadata, unless it is too large.

    ``remote_task_id`` and ``remote_context_id`` stand here when the peer named them for the first time.
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
    """The run has another driver: what the one before meant to send was on its way by then, or never will be."""
    broke: Literal[True] | None = None
    """The stream in which the peer told of the run ended before the run did."""
    stalled: Literal[True] | None = None
    """Nothing has moved since then, and callers are told so; whoever waits for an answer has it now."""
    title: str | None = None
    detail: str | None = None
    checkpoints: tuple[str, ...] | None = None
    metadata: JsonObject | None = None
    refused: ErrorDetail | None = None
    """Why the peer did not take the message that was sent to it last; the run goes on without it."""
    waits_on: str | None = None
    """The native state that the peer says from now on, while its task waits all the same: it has refused an answer."""


@record
class ModelRequested:
    """A message is about to go to the peer (EVC-6): the intent, stored before each try to send it.

    ``message_id`` finds it again at the peer when the outcome is unknown. The first one of a run stands beside its
    start, or, where policy has a say in what is sent, where it lets the message through.
    """

    type: ClassVar = EventType.MODEL_REQUESTED
    peer: str
    method: str
    message_id: str
    updated_input: str | None = None
    """SHA-256 of the message in place of the caller's, where a hook has changed it."""


def request(
    peer: str, mechanism: str | None, message_id: str, updated_input: str | None = None
) -> ModelRequested:
    """The intent to send a message by the way in which its run is followed."""
    method = "SendStreamingMessage" if mechanism == "streaming" else "SendMessage"
    return ModelRequested(peer, method, message_id, updated_input)


@record
class ModelDelta:
    """A chunk of streamed text on its way to an artifact (EVC-6); published only, never stored.

    ``block`` is ``<facade id>/<artifact id>``. At 0 the text begins it anew; else it goes behind a block that has
    ``at`` characters (Unicode code points), and nowhere if it has more or fewer.
    """

    type: ClassVar = EventType.MODEL_DELTA
    text: str
    block: str
    at: int = 0


@record
class ModelCompleted:
    """The peer has given its answer: its run has ended, or it asks something (EVC-6).

    It may have taken several connections. ``frames`` are those of the run that said something, before this one.
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
"""What the references to copies of an artifact's files begin with; a number follows."""


@record
class ArtifactChanged:
    """One artifact stands, whole (EVC-14, A2A-10); ``stored`` where nothing of it has to be fetched any more.

    ``artifact_id`` is ours (ID-11), ``name_at_peer`` the peer's; ``sha256`` is over the canonical JSON of
    its joined parts. The content stands in the entries of its task up to this one, or behind ``refs.artifact``.
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
    """The artifact of ours that this version takes the place of: itself, or one of the same name that an earlier task
    of the context produced (LT-17). ``version`` counts on from there."""
    awaited: Literal[1, -1] | None = None
    """Of an artifact that the record only counts: from here on the task waits for its files, or does so no more."""
    linked: Literal[True] | None = None
    """Of an artifact that the record only counts: the task has an edge to it. Facts of older versions gave it none."""


@record
class OutputSpilled:
    """Content over the cap of a fact went to the blob store; ``refs.output`` names it (ENV-11)."""

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
