"""Ports of projections: feeds, indexes and inboxes, built from the facts."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, Literal, Protocol, TypeAlias, get_args

from passerelle.core.frozen import frozen
from passerelle.core.ids import Shard
from passerelle.core.wire.record import value

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from passerelle.core.events import EncodedEvent
    from passerelle.core.payloads.approval import ClosingState


def order_feed_id(feed_id: str) -> tuple[int, int]:
    """A feed id as a pair of numbers: as texts, ids do not sort."""
    milliseconds, _, count = feed_id.partition("-")
    return int(milliseconds or 0), int(count or 0)


@value
class FeedRow:
    """A session got events ``first`` to ``last``; ``id`` orders the rows of a shard.

    ``index`` has the rows of owners' lists written with them; ``look``: a projection must read the events.
    """

    id: str
    session: str
    first: int
    last: int
    epoch: int
    look: bool = True
    index: tuple[IndexRow, ...] = ()


@frozen
class FeedTail:
    """The last rows of a feed in order, decoded on demand; ``is_whole``: the feed had no more."""

    read: Callable[[], Sequence[FeedRow]]
    is_whole: bool


IndexPart: TypeAlias = Literal["open", "completed", "canceled", "failed", "rejected"]
"""The status bucket of a task in its owner's list; all but the first are final."""


PARTS: Final[tuple[IndexPart, ...]] = get_args(IndexPart)


RowPart: TypeAlias = IndexPart | Literal["gone"]
"""``gone``: the task no longer belongs to the owner."""


@value
class IndexRow:
    """A row of an owner's list of the tasks of one agent: ``owner`` is a principal's key. The later time wins.

    A final bucket removes the task from the open ones. ``gone`` only removes it, for example when an open task changes
    its owner.
    """

    owner: str
    agent: str
    facade: str
    at_ms: int
    part: RowPart = "open"


@value
class ListedTasks:
    """A list of an owner's tasks at an agent; ``at_ms`` is the time of its last known row."""

    owner: str
    agent: str
    at_ms: int


@value
class ListSurvey:
    """The number of members of a list, and the oldest of them with their times in ms."""

    count: int
    oldest: tuple[tuple[str, int], ...]


@frozen
class InboxRow:
    """One event copied into the inbox of ``owner``; ``action`` opens (a view) or closes (None) the pending entry."""

    owner: str
    event: EncodedEvent
    action: str | None
    view: bytes | None
    asked_ms: int = 0
    """When ``action`` was opened: it orders the pending entries."""
    closed: ClosingState | None = None
    """Its outcome, which selects the list of closed entries; ordered by ``closed_ms``."""
    closed_ms: int = 0


@value
class NoteRow:
    """The note of a change in the lists of a tenant; ``owner`` is the tenant's key, which has no inbox."""

    owner: str
    event: EncodedEvent


ProjectionRow: TypeAlias = IndexRow | InboxRow | NoteRow


@value
class Taken:
    """How far a target shard has applied the rows of a source: ``mark`` is ``<epoch of the source>.<feed id>``.

    ``epoch`` is the shard epoch of the target at that time. ``watched`` are the keys of the tenants whose lists are
    followed, as the target had them when it applied the rows.
    """

    mark: str
    epoch: int
    watched: tuple[str, ...] = ()


@value
class Behind:
    """The target has lost rows that it had applied; ``mark`` is what it has, "" for nothing."""

    mark: str


@frozen
class RelayPosition:
    """The position of a consumer in a feed, and what each target had applied then."""

    mark: str | None
    taken: Mapping[Shard, Taken]


NONE_TAKEN: Final[Mapping[Shard, Taken]] = MappingProxyType({})


class Projections(Protocol):
    """Views in other shards, which can be rebuilt from the streams (I10)."""

    async def open_rows(self, owner: str, now_ms: int) -> None:
        """Starts to note changes of an owner's lists in a stream, for followers."""
        ...

    async def watch_tenant(self, tenant: str, now_ms: int) -> None:
        """The same for the lists of all owners of a tenant, by its key (``core.principal.name_tenant_lists``)."""
        ...

    async def restart_notes(self, tenant: str) -> None:
        """Restarts the stream of a tenant's changes after it lost some: each cursor in it is a gap."""
        ...

    async def read_feed(self, shard: Shard, after: str | None, limit: int = 128) -> list[FeedRow]:
        """Feed rows of a shard above an id, or from the oldest kept one."""
        ...

    async def read_mark(self, shard: Shard, consumer: str) -> str | None:
        """The position of a consumer in the feed of a shard, as ``<shard epoch>.<feed id>``."""
        ...

    async def read_position(self, shard: Shard, consumer: str) -> RelayPosition:
        """The position of a consumer, with what each target had applied when it was moved."""
        ...

    async def read_taken(self, source: Shard, target: Shard) -> str:
        """The mark of a target for a source; "" if it has none."""
        ...

    async def reaches_back(self, shard: Shard, feed_id: str | None) -> bool:
        """Whether the feed of a shard still has every row above an id, or every row."""
        ...

    async def advance(
        self,
        source: Shard,
        target: Shard,
        feed_id: str,
        rows: Sequence[ProjectionRow],
        known: str = "",
    ) -> Taken | Behind:
        """Applies the rows unless ``target`` has them from this source already.

        ``known`` is the mark that it had before. If it now has a lower one of the same epoch, nothing is applied.
        """
        ...

    async def move_mark(
        self, shard: Shard, consumer: str, feed_id: str, taken: Mapping[Shard, Taken] = NONE_TAKEN
    ) -> None:
        """Moves a consumer's position forward, stores ``taken``, and drops feed rows that no consumer needs."""
        ...

    async def index_now(self, row: IndexRow) -> None:
        """Writes an owner-index row at once, so that a caller sees its own writes."""
        ...

    def post_index(self, row: IndexRow, within_s: float) -> Awaitable[bool]:
        """Sends an owner-index row together with an append; await it for whether it was written.

        If not, use ``index_now``. It may wait up to ``within_s`` seconds to share a round trip, like the append.
        """
        ...

    async def read_index(
        self,
        owner: str,
        agent: str,
        before: tuple[int, str] | None,
        limit: int,
        parts: Sequence[IndexPart] = PARTS,
    ) -> list[tuple[str, int]]:
        """Facade ids of an owner at an agent with their times, newest first, strictly below ``before`` = (time, id)."""
        ...

    async def count_index(
        self, owner: str, agent: str, after_ms: int | None, parts: Sequence[IndexPart] = PARTS
    ) -> int:
        """The number of rows, or of those with a later time than ``after_ms``."""
        ...

    async def list_lists(self) -> list[ListedTasks]:
        """Every list of tasks that any owner has."""
        ...

    async def list_inbox(
        self, owner: str, limit: int | None = None, before: tuple[int, str] | None = None
    ) -> list[tuple[str, int]]:
        """Ids of the pending actions of an owner with the times at which they were opened, newest first.

        All, or at most ``limit``; strictly below ``before`` = (time, id).
        """
        ...

    async def list_closed(
        self,
        owner: str,
        states: Sequence[ClosingState],
        limit: int,
        before: tuple[int, str] | None = None,
    ) -> list[tuple[str, int]]:
        """Ids of an owner's actions that ended in one of ``states``, with their end times, newest first."""
        ...

    async def read_inbox(self, owner: str) -> list[tuple[str, bytes]]:
        """Pending actions of an owner with their copied views."""
        ...


class ListSurveys(Protocol):
    """Reads many lists at once, in one round trip per primary and at low priority.

    A survey raises StoreUnavailable if a primary does not answer.
    """

    async def survey_open(self, lists: Sequence[ListedTasks], oldest: int) -> list[ListSurvey]:
        """The open tasks of each list, with at most ``oldest`` of the oldest."""
        ...

    async def survey_pending(self, owners: Sequence[str], oldest: int) -> list[ListSurvey]:
        """The pending approvals of each owner, with at most ``oldest`` of the oldest."""
        ...
