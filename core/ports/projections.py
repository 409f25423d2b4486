"""Rows that are drawn from the facts: feeds, indexes and inboxes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, Literal, Protocol, TypeAlias, get_args

from passerelle.core.ids import Shard
from passerelle.core.wire.record import value

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from passerelle.core.events import EncodedEvent
    from passerelle.core.payloads.approval import ClosingState


@value
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
    """The last rows of a feed in their order, read when they are asked for; ``is_whole``: it had no more."""

    read: Callable[[], Sequence[FeedRow]]
    is_whole: bool


IndexPart: TypeAlias = Literal["open", "completed", "canceled", "failed", "rejected"]
"""Where a task stands in its owner's list; all but the first are ends, and final."""


PARTS: Final[tuple[IndexPart, ...]] = get_args(IndexPart)


RowPart: TypeAlias = IndexPart | Literal["gone"]
"""``gone``: the task is not the owner's any more."""


@value
class IndexRow:
    """A row of an owner's list of the tasks of one agent: ``owner`` is a principal's key. The later time wins.

    A row in the part of an end takes the task out of the part of open ones. One that is ``gone`` does that alone, as a
    task changes its owner while it is open.
    """

    owner: str
    agent: str
    facade: str
    at_ms: int
    part: RowPart = "open"


@value
class ListedTasks:
    """A list of an owner's tasks at an agent; ``at_ms`` is the time of the last row that is known to have come."""

    owner: str
    agent: str
    at_ms: int


@value
class ListSurvey:
    """How many members a list has, and the oldest of them with their times in ms."""

    count: int
    oldest: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class InboxRow:
    """One event copied into the inbox of ``owner``; ``action`` opens (a view) or closes (None) the pending entry."""

    owner: str
    event: EncodedEvent
    action: str | None
    view: bytes | None
    asked_ms: int = 0
    """When ``action`` was asked: its place among the pending ones."""
    closed: ClosingState | None = None
    """How it ended, which is the list of the closed ones where it stands, by ``closed_ms``."""
    closed_ms: int = 0


@value
class NoteRow:
    """The note of a change in the lists of a tenant; ``owner`` is the tenant's key, and nobody's inbox or list."""

    owner: str
    event: EncodedEvent


ProjectionRow: TypeAlias = IndexRow | InboxRow | NoteRow


@value
class Taken:
    """How far a target shard has taken the rows of a source: ``mark`` is ``<epoch of the source>.<feed id>``.

    ``epoch`` is the shard epoch of the target under which it said so. ``watched`` are the keys of the tenants whose
    lists somebody follows, as the target had them when it took the rows.
    """

    mark: str
    epoch: int
    watched: tuple[str, ...] = ()


@value
class Behind:
    """The target has lost rows that it had taken; ``mark`` is what it has, "" where that is nothing."""

    mark: str


@dataclass(frozen=True, slots=True)
class RelayPosition:
    """How far a consumer of a feed has come, and what each target had taken then."""

    mark: str | None
    taken: Mapping[Shard, Taken]


NONE_TAKEN: Final[Mapping[Shard, Taken]] = MappingProxyType({})


class Projections(Protocol):
    """Views of other shards, rebuilt from streams at will (I10)."""

    async def open_rows(self, owner: str, now_ms: int) -> None:
        """From here on what changes in an owner's lists is noted in a stream, for whoever follows them."""
        ...

    async def watch_tenant(self, tenant: str, now_ms: int) -> None:
        """The same of the lists of all owners of a tenant, by its key (``core.principal.name_tenant_lists``)."""
        ...

    async def restart_notes(self, tenant: str) -> None:
        """The stream of a tenant's changes has lost some: it begins anew, and each cursor in it is a gap."""
        ...

    async def read_feed(self, shard: Shard, after: str | None, limit: int = 128) -> list[FeedRow]:
        """Feed rows of a shard above an id, or from the oldest one that is kept."""
        ...

    async def read_mark(self, shard: Shard, consumer: str) -> str | None:
        """How far a consumer has come in the feed of a shard, as ``<shard epoch>.<feed id>``."""
        ...

    async def read_position(self, shard: Shard, consumer: str) -> RelayPosition:
        """The mark of a consumer with what each target had taken when it was moved."""
        ...

    async def read_taken(self, source: Shard, target: Shard) -> str:
        """The mark that a target has for a source; "" where it has none."""
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

        ``known`` is the mark that it had before. Where it has a lower one of the same epoch, nothing is applied.
        """
        ...

    async def move_mark(
        self, shard: Shard, consumer: str, feed_id: str, taken: Mapping[Shard, Taken] = NONE_TAKEN
    ) -> None:
        """Moves a consumer's mark forward, keeps what was taken, and drops feed rows that nobody needs."""
        ...

    async def index_now(self, row: IndexRow) -> None:
        """Writes an owner-index row, so that a caller sees its own writes."""
        ...

    def post_index(self, row: IndexRow, within_s: float) -> Awaitable[bool]:
        """Sends an owner-index row beside an append; to be awaited: whether it was written.

        What was not is for ``index_now``. Like the append it may wait for others, so long in seconds.
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
        """How many there are, or how many with a later time than ``after_ms``."""
        ...

    async def list_lists(self) -> list[ListedTasks]:
        """Every list of tasks that any owner has."""
        ...

    async def list_inbox(
        self, owner: str, limit: int | None = None, before: tuple[int, str] | None = None
    ) -> list[tuple[str, int]]:
        """Ids of the pending actions of an owner with the times at which they were asked, the newest first.

        All of them, or so many; strictly below ``before`` = (time, id).
        """
        ...

    async def list_closed(
        self,
        owner: str,
        states: Sequence[ClosingState],
        limit: int,
        before: tuple[int, str] | None = None,
    ) -> list[tuple[str, int]]:
        """Ids of actions of an owner that ended so, with the times at which they did, the last to end first."""
        ...

    async def read_inbox(self, owner: str) -> list[tuple[str, bytes]]:
        """Pending actions of an owner with the views that were copied."""
        ...


class ListSurveys(Protocol):
    """Looks at many lists at once, in one exchange with each primary, behind what callers wait for.

    A survey raises StoreUnavailable where a primary does not answer.
    """

    async def survey_open(self, lists: Sequence[ListedTasks], oldest: int) -> list[ListSurvey]:
        """The open tasks of each list, with at most so many of the oldest."""
        ...

    async def survey_pending(self, owners: Sequence[str], oldest: int) -> list[ListSurvey]:
        """The pending questions of each owner, with at most so many of the oldest."""
        ...
