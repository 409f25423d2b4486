"""The seams to the outside: what the inside asks of a store, a clock and chance, and the values that cross.

Each Protocol is named after a role and knows no Redis type. What an append takes and answers is in ``core/batch.py``.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final, Literal, Protocol, TypeAlias, get_args

from passerelle.core.ids import Shard, place

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping, Sequence

    from passerelle.core.batch import (
        AppendResult,
        Batch,
        EntityRef,
        Incarnation,
        Loaded,
        PackedBatch,
    )
    from passerelle.core.errors import StoreUnavailable
    from passerelle.core.events import EncodedEvent
    from passerelle.core.presence import Presence


class StreamKind(StrEnum):
    """What can be followed: a session, or the inbox of a principal."""

    SESSION = "session"
    INBOX = "inbox"


@dataclass(frozen=True, slots=True)
class StreamRef:
    """Names one stored stream; ``id`` is a session id, or the key of a principal."""

    kind: StreamKind
    id: str

    @property
    def shard(self) -> Shard:
        """Where it lives."""
        return place(self.id)


@dataclass(frozen=True, slots=True)
class Head:
    """The head of a stream. ``first`` is the lowest sequence that a trim has left, 1 without a trim."""

    epoch: str
    sequence: int
    chain: str
    first: int


@dataclass(frozen=True, slots=True)
class Entry:
    """One stored event. ``data`` is the whole envelope; ``frame`` = offset, length cuts the A2A frame out of it."""

    sequence: int
    event_id: str
    type: str
    previous: str
    """The chain before this entry."""
    data: bytes
    frame: tuple[int, int] | None = None
    facade: str | None = None


class EventLog(Protocol):
    """The only writer and the reader of facts. Raises StoreUnavailable where the store does not answer."""

    def shard_epoch(self, shard: Shard) -> int:
        """The epoch under which this process last saw the shard."""
        ...

    async def append(self, batch: Batch | PackedBatch) -> AppendResult:
        """Writes the batch whole, or nothing. An unknown outcome is tried again with the same operation."""
        ...

    def pack(self, batch: Batch) -> PackedBatch:
        """The batch as ``append`` sends it; nothing is sent."""
        ...

    def unpack(self, packed: PackedBatch, first: int) -> list[Loaded]:
        """What ``load`` reads of its entities once it is stored with its first event at ``first``."""
        ...

    async def load(self, refs: Sequence[EntityRef]) -> list[Loaded]:
        """Entities in the order asked for, read in one round trip per node."""
        ...

    async def read_idempotency(self, shard: Shard, key: str) -> tuple[str, bytes] | None:
        """Digest and result of a key, while its row lives."""
        ...

    async def read_head(self, stream: StreamRef) -> Head | None:
        """The head, or None when there is no such stream."""
        ...

    async def read_page(self, stream: StreamRef, after: int, limit: int = 256) -> list[Entry]:
        """Entries with a sequence above ``after``, in order."""
        ...

    async def read_resume(
        self, stream: StreamRef, after: int, limit: int = 256
    ) -> tuple[Head | None, list[Entry]]:
        """Head, then page, in one round trip and in this order: what verifies a cursor (I8)."""
        ...

    async def read_session_tasks(self, session: str) -> list[tuple[str, int]]:
        """Facade ids of a session with their last status time in ms, newest first."""
        ...

    async def read_open(self, session: str) -> list[str]:
        """Ids of the open tasks and actions of a session."""
        ...


class Hints(Protocol):
    """News of streams. A hint may be lost, doubled or late: it saves a read, and decides nothing."""

    async def subscribe(self, stream: StreamRef, on_hint: Callable[[bytes], None]) -> None:
        """Returns once the subscription is confirmed; ``on_hint`` gets the raw bytes of each hint."""
        ...

    async def unsubscribe(self, stream: StreamRef) -> None:
        """Ends the hints of a stream."""
        ...

    async def subscribe_shard(self, shard: Shard, on_hint: Callable[[bytes], None]) -> None:
        """The same for news of a shard: that it has a new epoch."""
        ...

    def on_loss(self, callback: Callable[[], None]) -> None:
        """Calls back whenever hints may have been lost: the connection was made anew."""
        ...


@dataclass(frozen=True, slots=True)
class Delta:
    """Text that is on its way. At 0 it begins ``block`` anew; else it goes behind a block of ``at`` characters.

    Characters are Unicode code points. What fits nowhere stands in the durable event that closes the block. ``block``
    begins with the facade id of its task.
    """

    block: str
    at: int
    text: str

    @property
    def facade(self) -> str:
        """The task whose text it is, as callers know it."""
        return self.block.partition("/")[0]


class Deltas(Protocol):
    """Text that is on its way, between instances: published to whoever listens, and stored nowhere (I1)."""

    async def publish(self, stream: StreamRef, event: EncodedEvent) -> int:
        """Publishes one ``model.delta`` once, and says how many instances listen. It may reach none of them."""
        ...

    async def listen(self, stream: StreamRef, on_delta: Callable[[Delta], None]) -> None:
        """Returns once each further delta of the stream is told. At most one listener for a stream."""
        ...

    async def ignore(self, stream: StreamRef) -> None:
        """Ends what ``listen`` began."""
        ...


class OpenText(Protocol):
    """The text of blocks that runs of this instance have begun and not closed."""

    def read_blocks(self, session: str) -> list[Delta]:
        """Each open block of a session as one delta from 0 on; whoever listens already goes on from there."""
        ...


@dataclass(frozen=True, slots=True)
class Lease:
    """Held until ``until_ms`` of the server's clock; ``duty`` says whether the shard's duties are ours too.

    ``free_ms`` is when a duty that was asked for ends, at the latest, unless the instance that has it extends it.
    """

    until_ms: int
    now_ms: int
    duty: bool
    free_ms: int | None = None


@dataclass(frozen=True, slots=True)
class LeaseLost:
    """The set was gone, missing or of another incarnation; what was driven there is no longer ours."""


@dataclass(frozen=True, slots=True)
class TakenOver:
    """The lease of a dead instance had ended: its runs, as run id and task id, and its channels."""

    number: int
    """The incarnation that died."""
    runs: tuple[tuple[str, str], ...]
    channels: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Alive:
    """The instance has extended its lease in the meantime."""


class Replicas(Protocol):
    """Copies of what is stored, of which one takes over in a failover: acts that nothing undoes wait for them."""

    def are_seen(self, shard: Shard) -> bool:
        """Whether there are any, as far as is known; without them nothing waits."""
        ...

    async def have_all(self, shard: Shard) -> bool:
        """Whether one of them has everything that was stored in a shard before; False while the store is away."""
        ...


@dataclass(frozen=True, slots=True)
class LeaseWish:
    """A lease that shall be opened or extended."""

    shard: Shard
    driver: Incarnation
    opens: bool
    wants_duty: bool


class Leases(Protocol):
    """One lease per instance and shard; time is the server's."""

    async def extend(
        self, shard: Shard, driver: Incarnation, *, opens: bool, wants_duty: bool, lease_ms: int
    ) -> Lease | LeaseLost:
        """Opens or extends the lease. Extending what is gone is a loss, never a silent new start."""
        ...

    async def extend_each(
        self, wishes: Sequence[LeaseWish], lease_ms: int
    ) -> list[Lease | LeaseLost | StoreUnavailable]:
        """The same for one lease in each of many shards, together; nothing is tried twice."""
        ...

    async def take_over(self, shard: Shard, instance: str) -> TakenOver | Alive:
        """Marks an expired lease as gone and says what it drove; an empty one is deleted with its due row."""
        ...

    async def release(self, shard: Shard, driver: Incarnation) -> None:
        """Ends the lease at once, so that its runs are taken over without waiting."""
        ...

    async def announce(self, instance: str) -> dict[str, int]:
        """Says that this instance lives. All that said so lately, and how many ms ago: duties are spread over them."""
        ...

    async def withdraw(self, instance: str) -> None:
        """Takes the instance off the list, so that others get its duties at once."""
        ...


@dataclass(frozen=True, slots=True)
class DueRow:
    """A claimed row; ``token`` settles it."""

    member: str
    token: str

    @property
    def kind(self) -> str:
        """The text before the first colon: names the handler."""
        return self.member.partition(":")[0]

    @property
    def entity(self) -> str:
        """The id that the row is about."""
        return self.member.split(":", 2)[1]


@dataclass(frozen=True, slots=True)
class Claimed:
    """Rows whose time has come, hidden from other claims for the visibility time, and when the next one is due."""

    rows: tuple[DueRow, ...]
    now_ms: int
    next_ms: int | None


class DueRows(Protocol):
    """Deadlines and owed acts of a shard (I9)."""

    async def claim(self, shard: Shard, limit: int, visibility_ms: int, hold: str = "") -> Claimed:
        """Claims up to ``limit`` rows that are due, and those of leases beyond that; none that begins with ``hold``."""
        ...


@dataclass(frozen=True, slots=True)
class FeedRow:
    """Says that a session got events ``first`` to ``last``; ``id`` orders the rows of a shard.

    ``index`` has the rows of owners' lists that came with them; ``look``: a projection has to look at the events.
    """

    id: str
    session: str
    first: int
    last: int
    epoch: int
    look: bool = True
    index: tuple[IndexRow, ...] = ()


@dataclass(frozen=True, slots=True)
class FeedTail:
    """The last rows of a feed in their order; ``is_whole``: it had no more."""

    rows: tuple[FeedRow, ...]
    is_whole: bool


Part: TypeAlias = Literal["open", "completed", "canceled", "failed", "rejected"]
"""Where a task stands in its owner's list; all but the first are ends, and final."""
PARTS: Final[tuple[Part, ...]] = get_args(Part)


@dataclass(frozen=True, slots=True)
class IndexRow:
    """A row of an owner's list of the tasks of one agent: ``owner`` is a principal's key. The later time wins.

    A row in the part of an end takes the task out of the part of open ones.
    """

    owner: str
    agent: str
    facade: str
    at_ms: int
    part: Part = "open"


@dataclass(frozen=True, slots=True)
class InboxRow:
    """One event copied into the inbox of ``owner``; ``action`` opens (a view) or closes (None) the pending entry."""

    owner: str
    event: EncodedEvent
    action: str | None
    view: bytes | None
    asked_ms: int = 0
    """When ``action`` was asked: its place among the pending ones."""


ProjectionRow: TypeAlias = IndexRow | InboxRow


class Projections(Protocol):
    """Views of other shards, rebuilt from streams at will (I10)."""

    async def read_feed(self, shard: Shard, after: str | None, limit: int = 128) -> list[FeedRow]:
        """Feed rows of a shard above an id, or from the oldest one that is kept."""
        ...

    async def read_mark(self, shard: Shard, consumer: str) -> str | None:
        """How far a consumer has come in the feed of a shard, as ``<shard epoch>.<feed id>``."""
        ...

    async def advance(
        self, source: Shard, target: Shard, feed_id: str, rows: Sequence[ProjectionRow]
    ) -> None:
        """Applies the rows unless ``target`` has them from this source already."""
        ...

    async def move_mark(self, shard: Shard, consumer: str, feed_id: str) -> None:
        """Moves a consumer's mark forward and drops feed rows that nobody needs."""
        ...

    def index_now(self, row: IndexRow) -> Coroutine[None, None, None]:
        """Writes an owner-index row, so that a caller sees its own writes: at once, also before it is awaited."""
        ...

    async def read_index(
        self,
        owner: str,
        agent: str,
        before: tuple[int, str] | None,
        limit: int,
        parts: Sequence[Part] = PARTS,
    ) -> list[tuple[str, int]]:
        """Facade ids of an owner at an agent with their times, newest first, strictly below ``before`` = (time, id)."""
        ...

    async def count_index(
        self, owner: str, agent: str, after_ms: int | None, parts: Sequence[Part] = PARTS
    ) -> int:
        """How many there are, or how many with a later time than ``after_ms``."""
        ...

    async def list_inbox(self, owner: str, limit: int | None = None) -> list[str]:
        """Ids of the pending actions of an owner, the newest first; all of them, or so many."""
        ...

    async def read_inbox(self, owner: str) -> list[tuple[str, bytes]]:
        """Pending actions of an owner with the views that were copied."""
        ...


AckResult: TypeAlias = Literal["stored", "stale_generation", "ack_epoch", "ack_ahead"]


@dataclass(frozen=True, slots=True)
class Acked:
    """What one device said last of a stream; ``cursor`` None: it follows, and has acknowledged nothing."""

    device: str
    generation: int
    cursor: str | None
    seen_ms: int


class Acks(Protocol):
    """How far each device has come in a stream, as it says itself."""

    async def store_ack(
        self, stream: StreamRef, device: str, generation: int, cursor: str, now_ms: int
    ) -> AckResult:
        """Moves the acknowledged cursor forward, never back (CHN-5)."""
        ...

    async def read_ack(self, stream: StreamRef, device: str) -> str | None:
        """The cursor that a device acknowledged last."""
        ...

    async def list_acks(self, stream: StreamRef) -> list[Acked]:
        """Every device that is remembered, the one that was seen last first."""
        ...


@dataclass(frozen=True, slots=True)
class SaidHello:
    """A channel has a new connection."""

    channel: str
    generation: int


@dataclass(frozen=True, slots=True)
class PresenceMoved:
    """A device of the owner says something else of itself than before."""


@dataclass(frozen=True, slots=True)
class DevicesChanged:
    """A device of the principal may do less than before: whoever is connected is looked at again."""


LinkNews: TypeAlias = SaidHello | PresenceMoved | DevicesChanged


class Channels(Protocol):
    """Records of device links."""

    async def say_hello(
        self, owner: str, channel: str, record: bytes, driver: Incarnation | None
    ) -> int:
        """Writes the record, makes the owner's inbox if there is none, returns the new generation."""
        ...

    async def listen(self, owner: str, on_news: Callable[[LinkNews], None]) -> None:
        """Returns once news of the owner's devices are told, from now on.

        A word of it may be lost or doubled, like any hint. At most one listener for an owner.
        """
        ...

    async def ignore(self, owner: str) -> None:
        """Ends what ``listen`` began."""
        ...

    async def tell_devices(self, owner: str) -> None:
        """Tells all who listen that the devices of the owner have changed."""
        ...

    async def keep(self, channel: str, generation: int, driver: Incarnation | None) -> int:
        """Says that a link is still open, and returns the newest generation of its channel."""
        ...

    async def read_generation(self, channel: str) -> int:
        """The newest generation of a channel; 0 when there is none."""
        ...

    async def list_live(self, owner: str) -> tuple[bytes, ...]:
        """The records of a principal's links that are open, of those that were opened last."""
        ...

    async def is_live(self, channel: str) -> bool:
        """Whether a connection of the channel is open, as far as anybody has told."""
        ...


@dataclass(frozen=True, slots=True)
class Present:
    """A device that is there, and for how long its word still holds if nothing more is heard of it."""

    presence: Presence
    left_ms: int


class Presences(Protocol):
    """Which devices of a principal are there, over all instances. A word holds for a minute."""

    async def say(self, owner: str, generation: int, presence: Presence) -> bool:
        """Notes the word of a connection, in place of the one before; False where a newer connection has spoken."""
        ...

    async def withdraw(self, owner: str, channel: str, generation: int) -> None:
        """A connection has ended: its word goes, unless a newer connection of the channel has spoken."""
        ...

    async def list_present(self, owner: str) -> tuple[Present, ...]:
        """The devices of one principal, by its key, that have spoken within the last minute."""
        ...


@dataclass(frozen=True, slots=True)
class OwedLink:
    """Facts of one kind about a link that are owed as one: ``total`` ever, ``told`` of them in facts before.

    ``payloads``: the last one; where each counts, up to 16 of them, each with a line feed.
    """

    record: bytes
    payloads: bytes
    total: int
    told: int


class Links(Protocol):
    """Facts that are owed about device links: several of one kind within a minute are told as one (EXT-8, I9)."""

    async def owe(
        self,
        channel: str,
        kind: str,
        payload: bytes,
        *,
        listed: bool = False,
        leaves: tuple[str, int] | None = None,
        wait_ms: int = 0,
    ) -> None:
        """Notes a fact; a row ``link:<channel>:<kind>`` comes due for it, after ``wait_ms`` at the earliest.

        ``listed``: each payload counts, not only the last one. ``leaves``: the instance and the generation whose
        connection has ended.
        """
        ...

    async def lose(self, channel: str, payload: bytes, instance: str) -> None:
        """Notes that a link has ended with its instance, unless the device is connected elsewhere already."""
        ...

    async def read_owed(self, channel: str, kind: str) -> OwedLink | None:
        """What is owed; None where the record is gone."""
        ...

    async def settle(self, row: DueRow, kind: str, owed: OwedLink, *, listed: bool) -> None:
        """What was read has been told."""
        ...


@dataclass(frozen=True, slots=True)
class AgentServed:
    """An agent that dials in: its last card as it gave it, and link -> instance of those who serve it now."""

    card: bytes
    generation: int
    links: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class AgentRegistered:
    """A link serves an agent from now on; without ``pool`` the ones of lower generations do not any more."""

    link: str
    generation: int
    pool: bool


@dataclass(frozen=True, slots=True)
class AgentOffered:
    """A task waits for the agent; with ``turn``, a further message on it."""

    task: str
    turn: str = ""


@dataclass(frozen=True, slots=True)
class AgentCancelled:
    """A task of the agent, by the agent's own id, is to stop."""

    remote: str


AgentNews: TypeAlias = AgentRegistered | AgentOffered | AgentCancelled


class Agents(Protocol):
    """Agents that dial in: who serves them, and what waits for them. News may be lost or doubled, like any hint."""

    async def register(
        self, agent: str, link: str, instance: str, card: bytes, *, hold_ms: int, pool: bool
    ) -> int:
        """Notes a link for ``hold_ms``, tells it, and returns its generation."""
        ...

    async def keep(
        self, agent: str, link: str, instance: str, generation: int, *, hold_ms: int
    ) -> bool:
        """Says that a link still serves; False where it has lost the name."""
        ...

    async def unregister(self, agent: str, link: str) -> None:
        """Forgets a link."""
        ...

    async def read(self, agent: str) -> AgentServed | None:
        """What is known; None for an agent that never dialled in."""
        ...

    async def offer(self, agent: str, task: str, turn: str = "") -> None:
        """Notes and tells that a task, or a further message on it, waits for the agent."""
        ...

    async def list_waiting(self, agent: str) -> list[str]:
        """Tasks that wait, as far as is noted."""
        ...

    async def forget(self, agent: str, task: str) -> None:
        """A task waits no more."""
        ...

    async def cancel(self, agent: str, remote: str) -> None:
        """Tells whoever serves the agent that one of its tasks is to stop."""
        ...

    async def listen(self, agent: str, on_news: Callable[[AgentNews], None]) -> None:
        """Returns once news of the agent are told here. At most one listener for an agent."""
        ...

    async def ignore(self, agent: str) -> None:
        """Ends what ``listen`` began."""
        ...


@dataclass(frozen=True, slots=True)
class Bucket:
    """A draw of units that flow back: ``limit`` of them in ``per_ms``. ``want`` below 0 gives back."""

    meter: str
    want: int
    limit: int
    per_ms: int


@dataclass(frozen=True, slots=True)
class Period:
    """A draw of units of one period, in which nothing flows back. ``mark`` asks to be the first to say so in it."""

    meter: str
    want: int
    limit: int
    from_ms: int
    till_ms: int
    mark: bool = False


Draw: TypeAlias = Bucket | Period


@dataclass(frozen=True, slots=True)
class Drawn:
    """Units that were given (below 0: taken back) and units that are left for everybody.

    ``note`` of a bucket are the ms until it has a unit again; of a period 1 when this call was the first with ``mark``.
    """

    given: int
    left: int
    note: int


@dataclass(frozen=True, slots=True)
class Granted:
    """What an instance holds in all (``slots``), the store's time, and what it drew just now, in order."""

    slots: int
    now_ms: int
    drawn: tuple[Drawn, ...] = ()


class Limits(Protocol):
    """Blocks of shared limits by the name of whom they bind."""

    async def take(
        self,
        name: str,
        instance: str,
        *,
        slots: int,
        limit: int,
        hold_ms: int,
        draws: Sequence[Draw] = (),
    ) -> Granted:
        """Sets how many of ``limit`` slots the instance holds (0 gives all back) for ``hold_ms``, and draws.

        Raises:
            StoreUnavailable: whether it was carried out is not known.
        """
        ...


class Blobs(Protocol):
    """Content that is too large for a fact, named by shard and SHA-256."""

    async def put(self, shard: Shard, content: bytes) -> str:
        """Stores the content before a fact names it, and returns its SHA-256 in hex."""
        ...

    async def get(self, shard: Shard, sha256: str) -> bytes | None:
        """The content, or None when it is not here."""
        ...


class Copies(Blobs, Protocol):
    """Content that may expire, since what facts are made of does not stand in it."""

    async def expire(self, shard: Shard, sha256: str, before_ms: int) -> bool:
        """Removes content that nobody has put since; whether it is not here any more."""
        ...


class Clock(Protocol):
    """Time, given as an argument to all that decides."""

    def now_ms(self) -> int:
        """Milliseconds since the epoch, UTC."""
        ...


class Ids(Protocol):
    """Randomness, given as an argument to all that decides."""

    def mint(self, prefix: str, shard: Shard) -> str:
        """A new id of ours."""
        ...

    def draw(self, bits: int) -> int:
        """A random number below 2**bits."""
        ...
