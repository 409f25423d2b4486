"""One batch is one decision: the input of an append, and its results.

Values only. The store knows no entity kind by name, and these values know no store. A batch names its entities, events,
due rows and conditions, touches one shard, and is checked and written as a whole (I2).
"""

from __future__ import annotations

from dataclasses import field
from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from passerelle.core.frozen import frozen
from passerelle.core.ids import Shard, shard_of
from passerelle.core.wire.record import value

if TYPE_CHECKING:
    from collections.abc import Mapping

    from passerelle.core.events import EncodedEvent
    from passerelle.core.ports.projections import FeedTail, IndexRow


class EntityKind(StrEnum):
    """Entities with a version, a snapshot and a machine. A further kind is a row in ``store/keys.py``."""

    SESSION = "session"
    THREAD = "thread"
    TASK = "task"
    ACTION = "action"
    DEVICES = "devices"
    GRANTS = "grants"
    RULES = "rules"


class EntityRef(NamedTuple):
    """Names one entity; its id carries its shard. A tuple, since every fold uses it as a lookup key."""

    kind: EntityKind
    id: str

    @property
    def shard(self) -> Shard:
        """The shard of the entity."""
        return shard_of(self.id)


@frozen
class Stamp:
    """The version of an entity and the operation that wrote it; both are compared.

    The version alone is not enough: after a lost tail the same number can name another history. ``Stamp(0, "")`` is an
    entity that does not exist.
    """

    version: int
    op: str


ABSENT = Stamp(0, "")


SnapshotPieces: TypeAlias = "tuple[bytes | int, ...]"
"""Snapshot bytes with placeholders: a number is the index of the batch event whose sequence is inserted there."""


@frozen
class Loaded:
    """An entity as it is stored; ``fields`` are the members of its hash besides version, operation and snapshot.

    ``snapshot`` is empty for an entity that does not exist. ``archive`` is the ref of its session if that is archived.
    """

    ref: EntityRef
    stamp: Stamp
    snapshot: bytes
    fields: Mapping[str, bytes] = field(default_factory=dict[str, bytes])
    archive: str | None = field(default=None, compare=False)


@frozen
class EntityWrite:
    """The new state of one entity. A None in ``fields`` removes the field from its hash."""

    ref: EntityRef
    expected: Stamp
    snapshot: SnapshotPieces
    fields: Mapping[str, bytes | None] = field(default_factory=dict[str, "bytes | None"])


@frozen
class Incarnation:
    """One life of an instance in a shard: the fence of every run that it drives there. Text form ``<instance>.<n>``."""

    instance: str
    number: int

    def __str__(self) -> str:
        return f"{self.instance}.{self.number}"


@frozen
class Fence:
    """The append requires that ``driver`` still drives ``task`` (field ``own`` of its hash)."""

    task: str
    driver: Incarnation


@frozen
class RunMove:
    """Adds a run to the set of its driver, or removes it; ``task`` is what a takeover reads there.

    Adding is refused with ``Fenced`` unless the driver's set exists and has this incarnation.
    """

    run: str
    task: str
    driver: Incarnation
    enters: bool


@frozen
class DueClaim:
    """A due row that the append settles: it must still have the score of the claim."""

    member: str
    token: str


@frozen
class DueChange:
    """Sets a due row (score in ms of the server's clock), or removes it when ``at_ms`` is None.

    ``member`` reads ``<kind>:<entity id>`` or ``<kind>:<entity id>:<n>``.
    """

    member: str
    at_ms: int | None


@frozen
class OpenChange:
    """Marks a task or action as open from event ``event`` (index in the batch) on, or as closed when None."""

    entity: str
    event: int | None


@frozen
class TargetChange:
    """Adds a webhook as receiver of the stream, or removes it when ``filter`` is None.

    ``filter`` is a facade id, or ``*`` for every event. A new target gets events from this batch on, with ``whole`` the
    current state first. An existing one is revived and continues at its position.
    """

    target: str
    filter: str | None
    whole: bool = False


@frozen
class IdempotencyRow:
    """Makes a command run once per key; ``digest`` distinguishes requests, a repeat gets ``result``."""

    key: str
    digest: str
    result: bytes
    ttl_ms: int


@frozen
class Batch:
    """One decision, written as a whole or not at all.

    ``session`` names the stream and determines the shard. ``stream_epoch`` (8 lower-case hex digits) is used only when
    the stream is created. At most 64 events or 256 KiB.
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
    """Facade id and last status time in ms, for the session's own task list."""
    feed: bool = True
    """Whether a projection must read these events; progress of a task, for example, changes none."""
    index: tuple[IndexRow, ...] = ()
    """Rows of owners' lists, which the relay copies unchanged."""
    targets: tuple[TargetChange, ...] = ()
    idem: IdempotencyRow | None = None
    at: str = ""
    """The time of its events (RFC 3339, ms); never before the last event of the stream."""

    @property
    def shard(self) -> Shard:
        """The one shard that the batch touches."""
        return shard_of(self.session)


@value
class PackedBatch:
    """A batch in the wire form of its store (``call``), with what is needed to read the reply."""

    session: str
    shard: Shard
    entities: tuple[EntityRef, ...]
    first_event: str
    """Empty if there are no events."""
    call: bytes
    within_s: float = 0.0
    """How long it may wait to share a round trip, in seconds."""


@value
class Appended:
    """Stored: sequences of the first and last event (the head's if there were none), chain, server time.

    ``woken``: how many webhook receivers had nothing to send before and do now.
    """

    first: int
    last: int
    chain: str
    now_ms: int
    woken: int = 0
    tail: FeedTail | None = None
    """The end of the shard's feed after this batch, if a projection must read it."""


@frozen
class Again:
    """This operation, or this idempotency key with the same digest, is already stored; ``result`` is its row's."""

    result: bytes | None


@frozen
class Conflict:
    """An entity has another version or operation than expected.

    ``entity`` is ``idempotency`` for a key with another digest.
    """

    entity: str
    stamp: Stamp


@frozen
class Fenced:
    """Another incarnation drives the run, or the driver's set is gone."""


@frozen
class Unclaimed:
    """The due row that the batch settles was claimed again or settled."""


@frozen
class Late:
    """``not_after_ms`` had passed by the server's clock, which reads ``now_ms``."""

    now_ms: int


@frozen
class StaleEpoch:
    """The shard has a newer epoch: state in memory may belong to a lost history."""

    epoch: int


@frozen
class Early:
    """The stream has an event with a later time ``at``: decide again with a time from then on."""

    at: str


AppendResult: TypeAlias = (
    Appended | Again | Conflict | Fenced | Unclaimed | Late | StaleEpoch | Early
)
