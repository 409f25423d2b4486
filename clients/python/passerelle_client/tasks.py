"""Tasks of an agent built with the a2a-sdk, shared by its replicas over Redis or Valkey. Needs no gateway.

Two lines make the SDK's handler work on any number of replicas::

    tasks = RedisVersionedTaskStore("redis://localhost:6379")
    handler = DefaultRequestHandler(executor, tasks, card, event_stream=RedisTaskEventStream(tasks))

A task that runs on one replica can be read, followed and cancelled on every other. A task that waits for input
continues on the replica that receives the input. A version is the number of writes, and also the cursor of the event
that made it. It is not the ``generation`` of the resume extension, since the SDK writes a version for some changes
without an event. Only this module of the kit imports the SDK.
"""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Self, TypeAlias, cast

import orjson
from a2a.server.cluster import (
    ConcurrentTaskModificationError,
    StoredTask,
    TaskEventStream,
    TaskVersion,
    VersionedEvent,
    VersionedTaskStore,
)
from a2a.types import ListTasksResponse, StreamResponse, Task, TaskState
from a2a.utils.constants import DEFAULT_LIST_TASKS_PAGE_SIZE
from a2a.utils.errors import InvalidParamsError
from a2a.utils.proto_utils import to_stream_response
from a2a.utils.task import (
    ListTasksCursor,
    decode_list_tasks_cursor,
    encode_list_tasks_cursor,
)

from passerelle.client.shared_events import EventsGoneError, SharedEvents
from passerelle.client.shared_lists import ListFilter, ListPlace, SharedLists
from passerelle.client.shared_space import SharedSpace
from passerelle.client.shared_tasks import Draft, SharedTasks, read_scripts
from passerelle.core.errors import ConfigInvalid, StoreUnavailable
from passerelle.store.connection import pack
from passerelle.store.hints import RedisHints
from passerelle.store.info import parse_info, read_facts, refuse_unfit
from passerelle.store.nodes import Nodes
from passerelle.store.topology import read_seeds

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable

    from a2a.server.context import ServerCallContext
    from a2a.server.events.event_queue import Event
    from a2a.types import ListTasksRequest

__all__ = [
    "ConfigInvalid",
    "EventsGoneError",
    "RedisTaskEventStream",
    "RedisVersionedTaskStore",
    "StoreUnavailable",
    "resolve_owner",
]

KEEP_EVENTS: Final = 10_000
KEEP_ENDED_S: Final = 3600.0
_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
_ENDED: Final = frozenset(
    {
        TaskState.TASK_STATE_COMPLETED,
        TaskState.TASK_STATE_CANCELED,
        TaskState.TASK_STATE_FAILED,
        TaskState.TASK_STATE_REJECTED,
    }
)
_US: Final = 1000
OwnerResolver: TypeAlias = "Callable[[ServerCallContext], str]"


def resolve_owner(context: ServerCallContext) -> str:
    """Returns the owner of a task: the user within the tenant. The SDK's own default ignores the tenant."""
    return orjson.dumps([context.tenant, context.user.user_name]).decode()


@dataclass(frozen=True, slots=True)
class _Opened:
    nodes: Nodes
    hints: RedisHints
    tasks: SharedTasks
    lists: SharedLists
    events: SharedEvents


class RedisVersionedTaskStore(VersionedTaskStore):
    """Versioned tasks on a server or cluster. It connects at the first use; ``aclose`` disconnects.

    ``name`` separates agents on one server; all replicas of an agent use the same name. ``keep_events`` events of each
    task are kept, until ``keep_ended_s`` after its end; a later reader gets an error. The task itself is kept until it
    is deleted.

    The first use raises ConfigInvalid if the server is too old, evicts keys or is a replica. Each use raises
    StoreUnavailable if the server does not respond.
    """

    def __init__(
        self,
        url: str,
        *,
        name: str = "agent",
        owner_resolver: OwnerResolver = resolve_owner,
        keep_events: int = KEEP_EVENTS,
        keep_ended_s: float = KEEP_ENDED_S,
    ) -> None:
        """Stores the address; connects later. Raises ValueError for an invalid name or number."""
        if _NAME.fullmatch(name) is None:
            message = f"name: letters, digits, _ and - only, not {name[:80]!r}"
            raise ValueError(message)
        if keep_events < 1 or keep_ended_s <= 0:
            raise ValueError("keep_events and keep_ended_s must be greater than 0")
        self._seeds = read_seeds(url)
        self._space = SharedSpace(name)
        self._owner = owner_resolver
        self._keep_events = keep_events
        self._ttl_ms = int(keep_ended_s * 1000)
        self._opening = asyncio.Lock()
        self._opened: _Opened | None = None

    async def open(self) -> _Opened:
        """Connects, if not connected. The first use calls it."""
        async with self._opening:
            if self._opened is None:
                self._opened = await self._connect()
            return self._opened

    async def aclose(self) -> None:
        """Closes every connection; the next use reconnects."""
        async with self._opening:
            opened, self._opened = self._opened, None
            if opened is not None:
                await opened.hints.close()
                await opened.nodes.close()

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.aclose()

    async def save(
        self,
        task: Task,
        *,
        event: Event | None,
        prev: Task | None,
        prev_version: TaskVersion,
        context: ServerCallContext,
    ) -> TaskVersion:
        """Writes a version with its event in one step.

        A write to CANCELED follows any version of a task that has not ended.

        Raises:
            ConcurrentTaskModificationError: another writer came first, or the task to cancel is missing or has ended.
        """
        del prev
        opened = await self.open()
        cancels = task.status.state == TaskState.TASK_STATE_CANCELED
        version = await opened.tasks.save(
            task.id,
            self._owner(context),
            _draft(task, event),
            None if cancels else _number(prev_version),
        )
        if version is None:
            raise ConcurrentTaskModificationError(task.id)
        return TaskVersion(version)

    async def get(self, task_id: str, context: ServerCallContext) -> StoredTask | None:
        """Returns a task of the caller with its version."""
        opened = await self.open()
        stored = await opened.tasks.load(task_id, self._owner(context))
        if stored is None:
            return None
        return StoredTask(Task.FromString(stored.task), TaskVersion(stored.version))

    async def list(self, params: ListTasksRequest, context: ServerCallContext) -> ListTasksResponse:
        """Returns the caller's tasks by status time, the newest first.

        Raises:
            InvalidParamsError: the page token is invalid.
        """
        opened = await self.open()
        size = params.page_size or DEFAULT_LIST_TASKS_PAGE_SIZE
        page = await opened.lists.read(
            self._owner(context), _read_wanted(params), _read_token(params.page_token), size
        )
        return ListTasksResponse(
            tasks=[Task.FromString(task) for task in page.tasks],
            total_size=page.total,
            page_size=size,
            next_page_token="" if page.last is None else _write_token(page.last),
        )

    async def delete(self, task_id: str, context: ServerCallContext) -> None:
        """Removes a task of the caller with its events; does nothing if it does not exist."""
        opened = await self.open()
        await opened.tasks.delete(task_id, self._owner(context))

    async def _connect(self) -> _Opened:
        nodes = await Nodes.open(self._seeds, read_scripts())
        try:
            for node in nodes.all:
                [reply] = await node.reads.call(pack("INFO"))
                facts = read_facts(parse_info(reply))
                # the operator of the agent chooses its durability
                refuse_unfit(facts, node.endpoint.name, "service")
        except BaseException:
            await nodes.close()
            raise
        lists = SharedLists(nodes, self._space)
        tasks = SharedTasks(nodes, self._space, lists, self._keep_events, self._ttl_ms)
        hints = RedisHints(nodes)
        return _Opened(nodes, hints, tasks, lists, SharedEvents(tasks, hints))


class RedisTaskEventStream(TaskEventStream):
    """The events of the tasks in a store, from any replica."""

    def __init__(self, tasks: RedisVersionedTaskStore) -> None:
        """Uses the connections of ``tasks``."""
        self._tasks = tasks

    async def publish(self, task_id: str, event: VersionedEvent) -> None:
        """Does nothing: ``save`` stores the event and publishes its hint."""
        del task_id, event

    async def subscribe(
        self, task_id: str, *, after: TaskVersion
    ) -> AsyncGenerator[VersionedEvent, None]:
        """Yields every event behind a version, stored ones first; without end.

        Raises:
            EventsGoneError: an event is no longer stored; no later event has been yielded.
        """
        opened = await self._tasks.open()
        events = opened.events.follow(task_id, _number(after))
        try:
            async for version, event in events:
                yield VersionedEvent(_read_event(event), TaskVersion(version))
        finally:
            await events.aclose()

    async def destroy(self, task_id: str) -> None:
        """Sets the events of a task to expire after ``keep_ended_s``. The end of a task does so as well."""
        opened = await self._tasks.open()
        await opened.tasks.expire_events(task_id)


def _number(version: TaskVersion) -> int:
    # the SDK has no public accessor for the version number; its own store reads the private attribute too
    value = version._value  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
    if not isinstance(value, int):
        message = f"a version of this store is a whole number, not {value!r}"
        raise TypeError(message)
    return value


def _draft(task: Task, event: Event | None) -> Draft:
    status = task.status
    return Draft(
        task=task.SerializeToString(),
        event=None if event is None else to_stream_response(event).SerializeToString(),
        context=task.context_id,
        state=TaskState.Name(status.state),
        time_us=status.timestamp.ToMicroseconds() if status.HasField("timestamp") else 0,
        ended=status.state in _ENDED,
    )


def _read_event(content: bytes) -> Event:
    response = StreamResponse.FromString(content)
    name = response.WhichOneof("payload")
    if name is None:
        raise ValueError("the event has no content")
    return cast("Event", getattr(response, name))


def _read_wanted(params: ListTasksRequest) -> ListFilter:
    since = params.HasField("status_timestamp_after")
    return ListFilter(
        context=params.context_id,
        state=TaskState.Name(params.status) if params.status else "",
        since_us=params.status_timestamp_after.ToMicroseconds() if since else 0,
    )


def _read_token(token: str) -> ListPlace | None:
    if not token:
        return None
    cursor = decode_list_tasks_cursor(token)
    if cursor is None:
        raise InvalidParamsError(message="pageToken is invalid")
    return (cursor.timestamp_ns or 0) // _US, cursor.task_id


def _write_token(place: ListPlace) -> str:
    time_us, task_id = place
    return encode_list_tasks_cursor(ListTasksCursor(time_us * _US if time_us else None, task_id))
