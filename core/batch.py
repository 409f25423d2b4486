"""One batch is one decision: what the append takes, and what it answers.

Values only. The store knows none of the entity kinds by name, and these values know no store: a batch names its
entities, events, due rows and conditions, touches one shard, and is compared and written as a whole (I2).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from passerelle.core.ids import Shard, shard_of
from passerelle.core.wire.record import value

if TYPE_CHECKING:
    from collections.abc import Mapping

    from passerelle.core.events import EncodedEvent
    from passerelle.core.ports.projections import FeedTail, IndexRow


class EntityKind(StrEnum):
    """What has a version, a snapshot and a machine of its own. A further kind is a row in ``store/keys.py``."""

    SESSION = "session"
    THREAD = "thread"
    TASK = "task"
    ACTION = "action"
    DEVICES = "devices"
    GRANTS = "grants"
    RULES = "rules"


class EntityRef(NamedTuple):
    """Names one entity; its id carries its shard. A tuple, since it is the key by which every fold looks up."""

    kind: EntityKind
    id: str

    @property
    def shard(self) -> Shard:
        """Where it lives."""
        return shard_of(self.id)


@dataclass(frozen=True, slots=True)
class Stamp:
    """The version of an entity and the operation that wrote it; both are compared.

    The version alone is not enough: after a lost tail the same number can name another history.
    ``Stamp(0, "")`` is an entity that does not exist.
    """

    version: int
    op: str


ABSENT = Stamp(0, "")


SnapshotPieces: TypeAlias = "tuple[bytes | int, ...]"
"""Snapshot bytes with holes: a number is the index of an event of the batch whose sequence goes there."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """An entity as it is stored; ``fields`` are the members of its hash beside version, operation and snapshot.

    ``snapshot`` is empty for an entity that does not exist. ``archive`` is the ref of its session where that has left
    memory.
    """

    ref: EntityRef
    stamp: Stamp
    snapshot: bytes
    fields: Mapping[str, bytes] = field(default_factory=dict[str, bytes])
    archive: str | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class EntityWrite:
    """The new state of one entity. A field of ``fields`` that is None is removed from its hash."""

    ref: EntityRef
    expected: Stamp
    snapshot: SnapshotPieces
    fields: Mapping[str, bytes | None] = field(default_factory=dict[str, "bytes | None"])


@dataclass(frozen=True, slots=True)
class Incarnation:
    """One life of an instance in a shard: the fence of every run that it drives there. Text form ``<instance>.<n>``."""

    instance: str
    number: int

    def __str__(self) -> str:
        return f"{self.instance}.{self.number}"


@dataclass(frozen=True, slots=True)
class Fence:
    """The append holds only while ``task`` is driven by ``driver`` (field ``own`` of its hash)."""

    task: str
    driver: Incarnation


@dataclass(frozen=True, slots=True)
class RunMove:
    """Enters a run in the set of its driver, or takes it out; ``task`` is what a take-over finds there.

    Entering is refused with ``Fenced`` unless the driver's set exists, is not gone and has this incarnation.
    """

    run: str
    task: str
    driver: Incarnation
    enters: bool


@dataclass(frozen=True, slots=True)
class DueClaim:
    """A due row that the append settles: it must still have the score with which it was claimed."""

    member: str
    token: str


@dataclass(frozen=True, slots=True)
class DueChange:
    """Sets a due row (score in ms of the server's clock), or drops it when ``at_ms`` is None.

    ``member`` reads ``<kind>:<entity id>`` or ``<kind>:<entity id>:<n>``.
    """

    member: str
    at_ms: int | None


@dataclass(frozen=True, slots=True)
class OpenChange:
    """Marks a task or action as open from event ``event`` (index in the batch) on, or as closed when None."""

    entity: str
    event: int | None


@dataclass(frozen=True, slots=True)
class TargetChange:
    """Makes a webhook receiver of the stream, or ends it when ``filter`` is None.

    ``filter`` is a facade id, or ``*`` for every event. A new target gets what comes from this batch on, with ``whole``
    the state as it stands first. One that exists lives again and goes on where it was.
    """

    target: str
    filter: str | None
    whole: bool = False


@dataclass(frozen=True, slots=True)
class IdempotencyRow:
    """Makes a command happen once per key; ``digest`` tells requests apart, ``result`` is what a repeat gets."""

    key: str
    digest: str
    result: bytes
    ttl_ms: int


@dataclass(frozen=True, slots=True)
class Batch:
    """One decision, written as a whole or not at all.

    ``session`` names the stream and places everything. ``stream_epoch`` (8 lower-case hex digits) is
    used only when the stream has to be made. At most 64 events or 256 KiB.
    """

    session: str
    op: str
    shard_epoch: int
    stream_epoch: str
    entities: tuple[EntityWrite, ...] = ()
    events: tuple[EncodedEvent, ...] = ()
    fence: Fence | None = None
    runs: tuple[RunMove, ...] = ()
    claim: DueClaim | None = None
    not_after_ms: int | None = None
    due: tuple[DueChange, ...] = ()
    open: tuple[OpenChange, ...] = ()
    task_times: tuple[tuple[str, int], ...] = ()
    """Facade id and last status time in ms: the session's own task list."""
    feed: bool = True
    """Whether a projection needs to look at these events; the progress of a task says nothing to one."""
    index: tuple[IndexRow, ...] = ()
    """Rows of owners' lists, which the relay passes on as they are."""
    targets: tuple[TargetChange, ...] = ()
    idem: IdempotencyRow | None = None
    at: str = ""
    """The time of its events (RFC 3339, ms), which is not before that of the last one in the stream."""

    @property
    def shard(self) -> Shard:
        """The one shard that the batch touches."""
        return shard_of(self.session)


@value
class PackedBatch:
    """A batch in the form in which its store takes it: ``call`` is that store's own, as it is sent.

    Beside it stands what has to be known to read the answer.
    """

    session: str
    shard: Shard
    entities: tuple[EntityRef, ...]
    first_event: str
    """Empty where there is none."""
    call: bytes
    within_s: float = 0.0
    """How long it may wait for others that travel with it, in seconds."""


@value
class Appended:
    """Stored: sequences of the first and last event (equal to the head's when there was none), chain, server time.

    ``woken``: how many webhook receivers have something to be sent now and had nothing before.
    """

    first: int
    last: int
    chain: str
    now_ms: int
    woken: int = 0
    tail: FeedTail | None = None
    """The end of the shard's feed right behind it, where a projection has to look at what was stored."""


@dataclass(frozen=True, slots=True)
class Again:
    """This operation, or this idempotency key with the same digest, is stored already; ``result`` is its row's."""

    result: bytes | None


@dataclass(frozen=True, slots=True)
class Conflict:
    """An entity has another version or operation than expected.

    ``entity`` is ``idempotency`` for a key with another digest.
    """

    entity: str
    stamp: Stamp


@dataclass(frozen=True, slots=True)
class Fenced:
    """The run is driven by somebody else, or the set that should take it is gone."""


@dataclass(frozen=True, slots=True)
class Unclaimed:
    """The due row that the batch settles has been claimed again, or settled."""


@dataclass(frozen=True, slots=True)
class Late:
    """``not_after_ms`` had passed by the server's clock, which reads ``now_ms``."""

    now_ms: int


@dataclass(frozen=True, slots=True)
class StaleEpoch:
    """The shard has a newer epoch: state held in memory may be of a lost history."""

    epoch: int


@dataclass(frozen=True, slots=True)
class Early:
    """The stream has an event of a later time, ``at``: the events are to be decided again, as of then."""

    at: str


AppendResult: TypeAlias = (
    Appended | Again | Conflict | Fenced | Unclaimed | Late | StaleEpoch | Early
)
