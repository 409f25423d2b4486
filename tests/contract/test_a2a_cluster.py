"""The task store for SDK agents: versions, events and lists on every engine (``passerelle.client.tasks``)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import pytest
from a2a.auth.user import User
from a2a.server.cluster import ConcurrentTaskModificationError, TaskVersion, VersionedEvent
from a2a.server.context import ServerCallContext
from a2a.types import (
    Artifact,
    ListTasksRequest,
    Part,
    Task,
    TaskArtifactUpdateEvent,
    TaskState,
    TaskStatus,
    TaskStatusUpdateEvent,
)
from a2a.utils.errors import InvalidParamsError
from google.protobuf.timestamp_pb2 import Timestamp

from passerelle.client.shared_events import SharedEvents
from passerelle.client.tasks import (
    EventsGoneError,
    RedisTaskEventStream,
    RedisVersionedTaskStore,
)
from passerelle.core.errors import ConfigInvalid, StoreUnavailable
from passerelle.store import keys
from passerelle.store.hints import RedisHints
from tests.support.engine import Server, ask
from tests.support.tcp_proxy import fault_proxy
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio
NOW_S = 1_790_000_000


@dataclass
class Named(User):
    """An authenticated user."""

    name: str

    @property
    def is_authenticated(self) -> bool:
        return True

    @property
    def user_name(self) -> str:
        return self.name


def caller(name: str = "ada", tenant: str = "") -> ServerCallContext:
    return ServerCallContext(user=Named(name), tenant=tenant)


def make_task(
    task_id: str = "t1", state: str = "WORKING", *, at_s: float = 0, context_id: str = "c1"
) -> Task:
    status = TaskStatus(state=f"TASK_STATE_{state}")
    moment = Timestamp()
    moment.FromMicroseconds(int((NOW_S + at_s) * 1_000_000))
    status.timestamp.CopyFrom(moment)
    return Task(id=task_id, context_id=context_id, status=status)


def happened(task: Task) -> TaskStatusUpdateEvent:
    return TaskStatusUpdateEvent(task_id=task.id, context_id=task.context_id, status=task.status)


@pytest.fixture
async def tasks(server: Server, anyio_backend: str) -> AsyncGenerator[RedisVersionedTaskStore]:
    async with RedisVersionedTaskStore(server.url, keep_events=5, keep_ended_s=60) as opened:
        yield opened


async def write(
    tasks: RedisVersionedTaskStore,
    task: Task,
    version: TaskVersion,
    context: ServerCallContext | None = None,
) -> TaskVersion:
    """Saves a task with the event that caused it."""
    return await tasks.save(
        task,
        event=happened(task),
        prev=None,
        prev_version=version,
        context=context or caller(),
    )


async def fill(tasks: RedisVersionedTaskStore, count: int) -> list[TaskVersion]:
    """A task with events, one for each of its versions."""
    versions = [TaskVersion.MISSING]
    for number in range(count):
        versions.append(await write(tasks, make_task(at_s=number), versions[-1]))
    return versions[1:]


@asynccontextmanager
async def follow(
    tasks: RedisVersionedTaskStore, after: TaskVersion, task_id: str = "t1"
) -> AsyncGenerator[AsyncIterator[VersionedEvent]]:
    async with aclosing(RedisTaskEventStream(tasks).subscribe(task_id, after=after)) as events:
        yield events


async def take(events: AsyncIterator[VersionedEvent], count: int) -> list[TaskVersion]:
    async with asyncio.timeout(10):
        return [(await anext(events)).version for _ in range(count)]


# ---- versions


async def test_versions_count_writes_and_a_task_is_read_unchanged(
    tasks: RedisVersionedTaskStore,
) -> None:
    task = make_task()
    task.artifacts.append(Artifact(artifact_id="a", parts=[Part(raw=b"\x00\xff")]))
    first = await write(tasks, task, TaskVersion.MISSING)
    assert first == TaskVersion(1)
    # The handler stores a user's message in a separate write, which no event caused.
    second = await tasks.save(task, event=None, prev=None, prev_version=first, context=caller())
    assert second == TaskVersion(2)
    stored = await tasks.get("t1", caller())
    assert stored is not None
    assert (stored.task, stored.version) == (task, second)


async def test_stale_and_repeated_first_writes_are_refused_and_change_nothing(
    tasks: RedisVersionedTaskStore,
) -> None:
    first = await write(tasks, make_task(), TaskVersion.MISSING)
    second = await write(tasks, make_task(at_s=1), first)
    for stale in (TaskVersion.MISSING, first, TaskVersion(7)):
        with pytest.raises(ConcurrentTaskModificationError):
            await write(tasks, make_task(state="FAILED"), stale)
    stored = await tasks.get("t1", caller())
    assert stored is not None
    assert (stored.task, stored.version) == (make_task(at_s=1), second)


async def test_of_many_writers_at_one_version_one_wins(tasks: RedisVersionedTaskStore) -> None:
    first = await write(tasks, make_task(), TaskVersion.MISSING)
    outcomes = await asyncio.gather(
        *(write(tasks, make_task(at_s=n), first) for n in range(10)), return_exceptions=True
    )
    won = [outcome for outcome in outcomes if isinstance(outcome, TaskVersion)]
    assert won == [TaskVersion(2)]
    lost = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
    assert all(isinstance(error, ConcurrentTaskModificationError) for error in lost)


async def test_cancel_follows_any_version_that_has_not_ended(
    tasks: RedisVersionedTaskStore,
) -> None:
    cancelled = make_task(state="CANCELED", at_s=5)
    with pytest.raises(ConcurrentTaskModificationError):
        await write(tasks, cancelled, TaskVersion.MISSING)
    assert await tasks.get("t1", caller()) is None
    first = await write(tasks, make_task(), TaskVersion.MISSING)
    await write(tasks, make_task(at_s=1), first)
    assert await write(tasks, cancelled, first) == TaskVersion(3)
    with pytest.raises(ConcurrentTaskModificationError):
        await write(tasks, cancelled, TaskVersion(3))


async def test_owner_is_the_user_within_the_tenant(tasks: RedisVersionedTaskStore) -> None:
    first = await write(tasks, make_task(), TaskVersion.MISSING, caller("ada", "one"))
    for other in (caller("ada", "two"), caller("ada"), caller("bob", "one")):
        assert await tasks.get("t1", other) is None
        assert (await tasks.list(ListTasksRequest(), other)).total_size == 0
        await tasks.delete("t1", other)
        with pytest.raises(ConcurrentTaskModificationError):
            await write(tasks, make_task(at_s=1), first, other)
    assert await tasks.get("t1", caller("ada", "one")) is not None


async def test_two_agents_on_one_server_are_isolated(
    tasks: RedisVersionedTaskStore, server: Server
) -> None:
    await write(tasks, make_task(), TaskVersion.MISSING)
    async with RedisVersionedTaskStore(server.url, name="other") as other:
        assert await other.get("t1", caller()) is None
        assert await write(other, make_task(), TaskVersion.MISSING) == TaskVersion(1)


async def test_deleted_task_leaves_no_keys(tasks: RedisVersionedTaskStore, server: Server) -> None:
    await fill(tasks, 2)
    await tasks.delete("t1", caller())
    await tasks.delete("t1", caller())
    assert await tasks.get("t1", caller()) is None
    assert (await tasks.list(ListTasksRequest(), caller())).total_size == 0
    assert [
        name for url in server.nodes for name in cast("list[bytes]", ask(url, "KEYS", "*"))
    ] == []


async def test_all_keys_of_a_task_share_a_slot_and_name_no_person(
    tasks: RedisVersionedTaskStore, server: Server
) -> None:
    await fill(tasks, 1)
    names = [name for url in server.nodes for name in cast("list[bytes]", ask(url, "KEYS", "*:t1"))]
    assert len(names) == 2
    assert len({name.partition(b"}")[0] for name in names}) == 1
    everything = [n for url in server.nodes for n in cast("list[bytes]", ask(url, "KEYS", "*"))]
    assert all(keys.PERMANENT.fullmatch(name.decode()) for name in everything)
    assert not any(b"ada" in name for name in everything)


async def test_write_whose_reply_was_lost_is_written_once(
    engine_server: Server, anyio_backend: str
) -> None:
    async with (
        fault_proxy(engine_server.url.removeprefix("unix://")) as proxy,
        RedisVersionedTaskStore(proxy.url) as tasks,
    ):
        first = await write(tasks, make_task(), TaskVersion.MISSING)
        proxy.swallow = 1
        assert await write(tasks, make_task(at_s=0, state="WORKING"), first) == TaskVersion(2)
        assert proxy.swallowed == 1
        page = await (await tasks.open()).tasks.read_events("t1", 0)
    assert [version for version, _ in page.events] == [1, 2]


def same_id(_: int) -> str:
    """The id of a repeated call."""
    return "0ddba11"


async def test_repeated_write_is_recognized_after_other_writes(
    tasks: RedisVersionedTaskStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    versions = await fill(tasks, 1)
    with monkeypatch.context() as same:
        same.setattr("passerelle.client.shared_tasks.secrets.token_hex", same_id)
        assert await write(tasks, make_task(at_s=1), versions[0]) == TaskVersion(2)
    for number in range(2, 5):
        await write(tasks, make_task(at_s=number), TaskVersion(number))
    with monkeypatch.context() as same:
        same.setattr("passerelle.client.shared_tasks.secrets.token_hex", same_id)
        assert await write(tasks, make_task(at_s=1), versions[0]) == TaskVersion(2)
    stored = await tasks.get("t1", caller())
    assert stored is not None
    assert stored.version == TaskVersion(5)


# ---- events


async def test_reader_gets_missed_events_and_then_new_ones(
    tasks: RedisVersionedTaskStore,
) -> None:
    versions = await fill(tasks, 3)
    async with follow(tasks, versions[0]) as events:
        assert await take(events, 2) == versions[1:]
        coming = asyncio.create_task(take(events, 2))
        await asyncio.sleep(0)
        latest = versions[-1]
        for number in (7, 8):
            latest = await write(tasks, make_task(at_s=number), latest)
        assert await coming == [TaskVersion(4), TaskVersion(5)]


async def test_every_kind_of_event_is_read_unchanged(tasks: RedisVersionedTaskStore) -> None:
    task = make_task()
    artifact = Artifact(artifact_id="a", parts=[Part(text="x")])
    said: list[Task | TaskStatusUpdateEvent | TaskArtifactUpdateEvent] = [
        task,
        happened(task),
        TaskArtifactUpdateEvent(task_id="t1", context_id="c1", artifact=artifact, append=True),
    ]
    version = TaskVersion.MISSING
    for event in said:
        version = await tasks.save(
            task, event=event, prev=None, prev_version=version, context=caller()
        )
    async with follow(tasks, TaskVersion.MISSING) as events:
        assert [(await anext(events)).event for _ in said] == said


async def test_writes_without_an_event_leave_no_gap_in_a_stream(
    tasks: RedisVersionedTaskStore,
) -> None:
    (first,) = await fill(tasks, 1)
    silent = await tasks.save(
        make_task(), event=None, prev=None, prev_version=first, context=caller()
    )
    async with follow(tasks, first) as events:
        coming = asyncio.create_task(take(events, 1))
        await asyncio.sleep(0)
        assert await write(tasks, make_task(), silent) == TaskVersion(3)
        assert await coming == [TaskVersion(3)]


async def test_readers_on_every_replica_get_all_events_at_once(
    tasks: RedisVersionedTaskStore, server: Server
) -> None:
    versions = await fill(tasks, 1)
    async with RedisVersionedTaskStore(server.url) as other:
        opened = await other.open()
        async with (
            follow(other, versions[0]) as one,
            follow(other, versions[0]) as two,
        ):
            coming = [asyncio.create_task(take(events, 3)) for events in (one, two)]
            await wait_until(lambda: opened.events.watched == 1, 5, "both follow over one watch")
            for _ in range(3):
                versions.append(await write(tasks, make_task(), versions[-1]))
            # Well below the interval after which a reader polls.
            received = await asyncio.wait_for(asyncio.gather(*coming), 3)
        assert received == [versions[1:], versions[1:]]
        await wait_until(lambda: opened.events.watched == 0, 5, "nothing is followed any more")


class NoHints:
    """Hints that never arrive."""

    def on_loss(self, *_: object) -> None: ...

    async def listen(self, *_: object) -> None: ...

    async def ignore(self, *_: object) -> None: ...


async def test_reader_without_hints_polls(tasks: RedisVersionedTaskStore, server: Server) -> None:
    versions = await fill(tasks, 1)
    opened = await tasks.open()
    deaf = SharedEvents(opened.tasks, cast("RedisHints", NoHints()), poll_s=0.05)
    async with aclosing(deaf.follow("t1", 1)) as events:
        coming = asyncio.create_task(anext(events))
        await wait_until(lambda: deaf.watched == 1, 5, "it follows")
        await write(tasks, make_task(), versions[-1])
        async with asyncio.timeout(5):
            assert (await coming)[0] == 2


@pytest.mark.requirement("I8")
async def test_trimmed_events_are_reported_and_never_skipped(
    tasks: RedisVersionedTaskStore,
) -> None:
    versions = await fill(tasks, 8)
    # Five are kept: 4 to 8.
    for after in (TaskVersion.MISSING, *versions[:2]):
        async with follow(tasks, after) as events:
            with pytest.raises(EventsGoneError):
                await anext(events)
    async with follow(tasks, versions[2]) as events:
        assert await take(events, 5) == versions[3:]


@pytest.mark.requirement("I8")
async def test_slow_reader_behind_the_trim_line_gets_an_error(
    tasks: RedisVersionedTaskStore,
) -> None:
    versions = await fill(tasks, 1)
    async with follow(tasks, TaskVersion.MISSING) as events:
        assert await take(events, 1) == versions
        for _ in range(7):
            versions.append(await write(tasks, make_task(), versions[-1]))
        with pytest.raises(EventsGoneError):
            await anext(events)


@pytest.mark.requirement("I8")
@pytest.mark.parametrize("how", ["deleted", "expired", "lost"])
async def test_missing_events_are_reported(
    tasks: RedisVersionedTaskStore, server: Server, how: str
) -> None:
    versions = await fill(tasks, 3)
    at = (await tasks.open()).tasks.space.locate("t1")
    node = (await tasks.open()).nodes.node(at.shard).endpoint.name
    url = next(url for url in server.nodes if node in url)
    async with follow(tasks, versions[-1] if how == "lost" else versions[0]) as events:
        if how == "deleted":
            await tasks.delete("t1", caller())
        elif how == "expired":
            ask(url, "DEL", at.events)
        else:
            # A failover lost the tail of the history, and versions will be reused.
            ask(url, "HSET", at.task, "v", "2", "last", "2")
        with pytest.raises(EventsGoneError) as gone:
            await anext(events)
    assert gone.value.task_id == "t1"


@pytest.mark.requirement("I8")
@pytest.mark.parametrize("how", ["destroyed", "ended"])
async def test_missing_events_are_reported_after_one_more_version(
    tasks: RedisVersionedTaskStore, server: Server, how: str
) -> None:
    """The next event creates the stream again: it does not follow the expired events, and expires like them."""
    versions = await fill(tasks, 4)
    at = (await tasks.open()).tasks.space.locate("t1")
    node = (await tasks.open()).nodes.node(at.shard).endpoint.name
    url = next(url for url in server.nodes if node in url)
    if how == "destroyed":
        await RedisTaskEventStream(tasks).destroy("t1")
    else:
        versions.append(await write(tasks, make_task(state="COMPLETED"), versions[-1]))
    assert cast("int", ask(url, "PTTL", at.events)) > 0
    assert ask(url, "PEXPIRE", at.events, 0) == 1
    versions.append(await write(tasks, make_task(at_s=60), versions[-1]))
    for after in (TaskVersion.MISSING, *versions[:-2]):
        async with follow(tasks, after) as events:
            with pytest.raises(EventsGoneError):
                await anext(events)
    async with follow(tasks, versions[-2]) as events:
        assert await take(events, 1) == versions[-1:]
    assert 0 < cast("int", ask(url, "PTTL", at.events)) <= 60_000


async def test_events_expire_after_the_end_and_the_task_stays(
    tasks: RedisVersionedTaskStore, server: Server
) -> None:
    versions = await fill(tasks, 1)
    at = (await tasks.open()).tasks.space.locate("t1")
    node = (await tasks.open()).nodes.node(at.shard).endpoint.name
    url = next(url for url in server.nodes if node in url)
    assert ask(url, "PTTL", at.events) == -1
    await write(tasks, make_task(state="COMPLETED"), versions[-1])
    assert 0 < cast("int", ask(url, "PTTL", at.events)) <= 60_000
    assert ask(url, "PTTL", at.task) == -1
    ask(url, "PERSIST", at.events)
    await RedisTaskEventStream(tasks).destroy("t1")
    assert cast("int", ask(url, "PTTL", at.events)) > 0


async def test_publish_adds_nothing_to_the_saved_task(tasks: RedisVersionedTaskStore) -> None:
    versions = await fill(tasks, 1)
    stream = RedisTaskEventStream(tasks)
    await stream.publish("t1", VersionedEvent(happened(make_task()), versions[0]))
    page = await (await tasks.open()).tasks.read_events("t1", 0)
    assert [version for version, _ in page.events] == [1]


# ---- lists


async def make_list(tasks: RedisVersionedTaskStore) -> None:
    """Nine tasks: t0 is the oldest; t3 and t4 have the same time; every third one has ended; contexts a and b."""
    for number in range(9):
        state = "COMPLETED" if number % 3 == 0 else "WORKING"
        at_s = 3 if number == 4 else number
        context_id = "a" if number < 5 else "b"
        task = make_task(f"t{number}", state, at_s=at_s, context_id=context_id)
        await write(tasks, task, TaskVersion.MISSING)


async def read_pages(
    tasks: RedisVersionedTaskStore, size: int, **wanted: object
) -> tuple[list[str], set[int]]:
    """The ids of all pages, and the totals that they contain."""
    found: list[str] = []
    totals: set[int] = set()
    token = ""
    while True:
        request = ListTasksRequest(page_size=size, page_token=token, **cast("Any", wanted))
        page = await tasks.list(request, caller())
        assert len(page.tasks) <= size
        assert page.page_size == size
        found += [task.id for task in page.tasks]
        totals.add(page.total_size)
        token = page.next_page_token
        if not token:
            return found, totals


@pytest.mark.parametrize("size", [1, 2, 4, 100])
async def test_list_is_ordered_by_status_time_without_gaps_between_pages(
    tasks: RedisVersionedTaskStore, size: int
) -> None:
    await make_list(tasks)
    expected = ["t8", "t7", "t6", "t5", "t4", "t3", "t2", "t1", "t0"]
    assert await read_pages(tasks, size) == (expected, {9})
    done = TaskState.TASK_STATE_COMPLETED
    assert await read_pages(tasks, size, status=done) == (["t6", "t3", "t0"], {3})
    assert await read_pages(tasks, size, context_id="b") == (["t8", "t7", "t6", "t5"], {4})
    assert await read_pages(tasks, size, context_id="b", status=done) == (["t6"], {1})
    since = Timestamp()
    since.FromMicroseconds((NOW_S + 6) * 1_000_000)
    late = ["t8", "t7", "t6"]
    assert await read_pages(tasks, size, status_timestamp_after=since) == (late, {3})


async def test_updated_task_moves_up_and_is_listed_once(
    tasks: RedisVersionedTaskStore,
) -> None:
    await make_list(tasks)
    await write(tasks, make_task("t1", at_s=100, context_id="a"), TaskVersion(1))
    found, totals = await read_pages(tasks, 4)
    assert (found[0], sorted(found), totals) == ("t1", [f"t{n}" for n in range(9)], {9})


async def test_tasks_with_equal_times_are_all_listed(tasks: RedisVersionedTaskStore) -> None:
    names = [f"t{number:03d}" for number in range(300)]
    await asyncio.gather(*(write(tasks, make_task(name), TaskVersion.MISSING) for name in names))
    assert await read_pages(tasks, 100) == (names[::-1], {300})


async def test_list_drops_rows_without_a_task_and_moves_rows_that_lag(
    tasks: RedisVersionedTaskStore,
) -> None:
    await make_list(tasks)
    lists = (await tasks.open()).lists
    owner = tasks._owner(caller())  # pyright: ignore[reportPrivateUsage]
    await lists.place("never-written", owner, NOW_S * 2_000_000)
    await lists.forget(owner, ["t8"])
    await lists.place("t8", owner, 5)
    found, _ = await read_pages(tasks, 100)
    assert sorted(found) == [f"t{n}" for n in range(9)]
    found, totals = await read_pages(tasks, 100)
    assert (found[0], totals) == ("t8", {9})


async def test_foreign_page_token_is_refused(tasks: RedisVersionedTaskStore) -> None:
    with pytest.raises(InvalidParamsError):
        await tasks.list(ListTasksRequest(page_token="?"), caller())


# ---- the server


async def test_server_that_evicts_is_refused_at_the_first_use(engine_server: Server) -> None:
    ask(engine_server.url, "CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
    try:
        with pytest.raises(ConfigInvalid, match="noeviction"):
            await RedisVersionedTaskStore(engine_server.url).get("t1", caller())
    finally:
        ask(engine_server.url, "CONFIG", "SET", "maxmemory-policy", "noeviction")


async def test_unreachable_server_is_reported_and_retried_at_the_next_use() -> None:
    tasks = RedisVersionedTaskStore("redis://127.0.0.1:1")
    for _ in range(2):
        with pytest.raises(StoreUnavailable):
            await tasks.get("t1", caller())


@pytest.mark.parametrize(
    "settings", [{"name": ""}, {"name": "a:b"}, {"keep_events": 0}, {"keep_ended_s": 0}]
)
def test_unusable_settings_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"^(name|keep)"):
        partial(RedisVersionedTaskStore, "redis://127.0.0.1:1", **settings)()
