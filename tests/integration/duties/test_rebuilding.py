"""Views are rebuilt where the feed no longer covers a loss: by command, and by the owner of the duty (I10).

The tail of a shard is removed from a running engine: that of the views in some tests, that of the records in others.
"""

from __future__ import annotations

import asyncio
import hashlib
import sys
from pathlib import Path
from typing import cast

import pytest

from passerelle.core.batch import EntityRef
from passerelle.core.ids import ALL_SHARDS
from passerelle.core.index_changes import SESSIONS
from passerelle.core.payloads.conversation import SessionCreated, SessionUpdated
from passerelle.core.payloads.history import HistoryReconstructed
from passerelle.core.ports.log import StreamKind, StreamRef
from passerelle.core.ports.projections import PARTS, IndexPart
from passerelle.core.read_models.tasks import show_tasks
from passerelle.core.session import machine
from passerelle.core.task.record import TaskRecord
from passerelle.core.wire.codec import to_bytes
from passerelle.delegation.verification.report import DERIVED
from passerelle.delegation.verification.stream import replay_session
from passerelle.delegation.verification.walk import verify_store
from passerelle.runtime.records.writes import AppendOptions, Written
from passerelle.store import keys
from passerelle.store.store import Store
from tests.integration.duties.conftest import Instance, Instances
from tests.integration.duties.story import OWNER, Story
from tests.integration.duties.test_lost_rows import (
    HOME,
    SOURCE,
    begin,
    find_epoch,
    list_questions,
    list_tasks,
    relay_all,
)
from tests.support.engine import ask
from tests.support.lost_tail import ShardSnapshot, take_snapshot
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio


async def list_problems(store: Store) -> list[str]:
    """Differences between views and streams, without those of tasks that no instance drives."""
    found = (await verify_store(store, rebuild=True)).problems
    return [str(one) for one in found if one.kind in DERIVED]


async def list_part(store: Store, part: IndexPart) -> set[str]:
    rows = await store.projections.read_index(OWNER.key, "echo", None, 100, (part,))
    return {facade for facade, _ in rows}


def forget_feed(url: str) -> None:
    """Trims the feed: its rows are older than 15 minutes."""
    ask(url, "XTRIM", keys.feed(SOURCE), "MAXLEN", 0)
    ask(url, "HSET", keys.meta(SOURCE), "dropped", "9999999999999-0")


async def write_stories(store: Store, relaying: Instance) -> tuple[list[Story], list[EntityRef]]:
    """One open and one ended task, with an open and an answered approval each."""
    stories = [await begin(store), await begin(store)]
    asked: list[EntityRef] = []
    for story in stories:
        asked += [await story.ask("open"), await story.ask("answered")]
        await story.answer(asked[-1])
    await stories[1].fail()
    await relay_all(relaying)
    return stories, asked


async def run_command(*arguments: str) -> list[str]:
    """Returns the lines that a command of the product prints."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "passerelle", *arguments), stdout=asyncio.subprocess.PIPE
    )
    output, _ = await process.communicate()
    return output.decode().splitlines()


async def check_views(store: Store, stories: list[Story], asked: list[EntityRef]) -> None:
    assert await list_problems(store) == []
    assert await list_part(store, "open") == {stories[0].task.id}
    assert await list_part(store, "failed") == {stories[1].task.id}
    assert await list_questions(store) == {asked[0].id, asked[2].id}
    closed = await store.projections.list_closed(OWNER.key, ("allowed",), 10)
    assert {name for name, _ in closed} == {asked[1].id, asked[3].id}


@pytest.mark.requirement("I10")
async def test_verify_reports_what_it_would_repair_and_repairs_it(
    instances: Instances, store: Store, tmp_path: Path
) -> None:
    relaying = await instances.start("in_one", runs=False)
    before = take_snapshot(instances.url, HOME)
    stories, asked = await write_stories(store, relaying)
    before.restore()
    forget_feed(instances.url)
    ask(
        instances.url, "ZREM", keys.session_tasks(SOURCE, stories[0].session.id), stories[0].task.id
    )
    report = await verify_store(store, rebuild=True)
    listed = {one.subject for one in report.problems if one.kind in {"unlisted", "inbox"}}
    assert listed == {*(story.task.id for story in stories), asked[0].id, asked[2].id}
    derived = {str(one) for one in report.problems if one.kind in DERIVED}
    others = {str(one) for one in report.problems if one.kind not in DERIVED}
    verify = ("verify", "--repair", "--redis-url", instances.url, "--data-dir", str(tmp_path))
    planned = await run_command(*verify, "--dry-run")
    assert {line for line in planned if "repair: " in line} == {
        *(f"would repair: {one}" for one in derived),
        *(f"cannot repair: {one}" for one in others),
    }
    assert await list_problems(store) != [], "nothing was written"
    repaired = await run_command(*verify)
    assert {line for line in repaired if line.startswith("repaired: ")} == {
        f"repaired: {one}" for one in derived
    }
    assert f", {len(derived)} repaired; {len(others)} problems" in repaired[-1]
    assert await list_problems(store) == []
    assert await list_questions(store) == {asked[0].id, asked[2].id}
    assert (await verify_store(store, repair=True)).repaired == []


@pytest.mark.requirement("I10")
async def test_restored_approval_is_published_to_the_inbox_once(
    instances: Instances, store: Store
) -> None:
    relaying = await instances.start("in_one", runs=False)
    _, asked = await write_stories(store, relaying)
    ask(instances.url, "HDEL", keys.inbox_open(HOME, OWNER.key), asked[0].id)
    ask(instances.url, "ZREM", keys.inbox_order(HOME, OWNER.key), asked[0].id)
    inbox = StreamRef(StreamKind.INBOX, OWNER.key)
    before = await store.log.read_page(inbox, 0, 100)
    for _ in range(2):
        await verify_store(store, repair=True)
        assert asked[0].id in await list_questions(store)
    after = await store.log.read_page(inbox, 0, 100)
    assert [one.event_id for one in after] == [one.event_id for one in before], (
        "it is there already"
    )


@pytest.mark.requirement("I10")
@pytest.mark.parametrize("is_next", [True, False], ids=["with the next row", "by asking"])
async def test_loss_older_than_the_feed_is_repaired_by_the_owner_of_the_duty(
    instances: Instances, store: Store, *, is_next: bool
) -> None:
    relaying = await instances.start("in_one", runs=False)
    before = take_snapshot(instances.url, HOME)
    stories, asked = await write_stories(store, relaying)
    forget_feed(instances.url)
    before.restore()
    if is_next:
        stories.append(await begin(store))
    relaying.duties.relay.audit_s = 0.0
    await instances.stack.enter_async_context(relaying.duties)

    async def is_whole() -> bool:
        return await list_tasks(store) == {story.task.id for story in stories}

    await wait_until(is_whole, 60, "the lists are whole")
    await await_settled(instances.url)
    assert await list_problems(store) == []
    assert await list_questions(store) == {asked[0].id, asked[2].id}
    assert await find_epoch(store, SOURCE) == 0, "nothing was lost there"


async def lose_records(instances: Instances, relaying: Instance, moment: ShardSnapshot) -> None:
    """Restores the earlier records and reports the loss."""
    moment.restore()
    await instances.stack.enter_async_context(relaying.duties)
    relaying.duties.repair.find_loss(SOURCE, 0, "audit")


async def await_settled(url: str) -> None:
    """Waits until no rebuild is pending in any shard."""

    def is_settled() -> bool:
        rows = [row for shard in ALL_SHARDS for row in _list_due(url, keys.due(shard))]
        return not any(row.startswith(b"rebuild:") for row in rows)

    await wait_until(is_settled, 60, "the views are rebuilt")


def _list_due(url: str, name: str) -> list[bytes]:
    return cast("list[bytes]", ask(url, "ZRANGE", name, 0, -1))


@pytest.mark.requirement("I10")
async def test_rows_of_tasks_lost_with_the_tail_are_removed(
    instances: Instances, store: Store
) -> None:
    relaying = await instances.start("in_one", runs=False)
    kept = await begin(store)
    one = await kept.ask("kept")
    await relay_all(relaying)
    moment = take_snapshot(instances.url, SOURCE)
    lost = await begin(store)
    two = await lost.ask("lost")
    await relay_all(relaying)
    assert await list_questions(store) == {one.id, two.id}
    moment.restore()
    assert {line.split(": ")[1].split(" ")[0] for line in await list_problems(store)} == {
        lost.task.id,
        two.id,
    }
    await lose_records(instances, relaying, moment)

    async def is_whole() -> bool:
        # The two forms of an inbox take two reads, which differ if the rebuild writes between them.
        return {name for name, _ in await store.projections.list_inbox(OWNER.key)} == {one.id}

    await wait_until(is_whole, 60, "the lost approval is gone")
    await await_settled(instances.url)
    assert await list_questions(store) == {one.id}
    assert await list_tasks(store) == {kept.task.id}
    assert await list_problems(store) == []


@pytest.mark.requirement("I10")
@pytest.mark.parametrize("feed", ["has it", "is shorter"])
async def test_task_whose_end_was_lost_is_open_again_in_lists_and_inbox(
    instances: Instances, store: Store, feed: str
) -> None:
    relaying = await instances.start("in_one", runs=False)
    story = await begin(store)
    asked = await story.ask("may I")
    await relay_all(relaying)
    if feed == "is shorter":
        forget_feed(instances.url)
    moment = take_snapshot(instances.url, SOURCE)
    await story.answer(asked)
    await story.fail()
    await relay_all(relaying)
    assert await list_questions(store) == set()
    assert await list_part(store, "failed") == {story.task.id}
    await lose_records(instances, relaying, moment)

    async def is_open() -> bool:
        return [name for name, _ in await store.projections.read_inbox(OWNER.key)] == [asked.id]

    await wait_until(is_open, 60, "the question is in the inbox again")
    assert await list_questions(store) == {asked.id}
    await await_settled(instances.url)
    parts = {part: await list_part(store, part) for part in PARTS}
    assert {part for part, named in parts.items() if named} == {"open"}
    assert await list_problems(store) == []


@pytest.mark.requirement("EXT-11", "I10")
async def test_rebuilt_session_records_its_rebuild_once(instances: Instances, store: Store) -> None:
    relaying = await instances.start("in_one", runs=False)
    stories = [await begin(store), await begin(store)]
    sessions = [await name_session(story) for story in stories]
    for story in stories:
        await story.fail()
    await relay_all(relaying)
    ask(instances.url, "ZREM", keys.session_tasks(SOURCE, sessions[0]), stories[0].task.id)
    forget_feed(instances.url)

    async def list_rebuilds(session: str) -> list[HistoryReconstructed]:
        look = await replay_session(store.log, session)
        assert look is not None
        payloads = (event.fact.payload for event in look.events)
        return [one for one in payloads if isinstance(one, HistoryReconstructed)]

    async def is_recorded() -> bool:
        return await list_rebuilds(sessions[0]) != []

    last = await store.log.read_head(StreamRef(StreamKind.SESSION, sessions[0]))
    assert last is not None
    await instances.stack.enter_async_context(relaying.duties)
    await relaying.duties.view_rebuild.schedule_all(SOURCE)
    await wait_until(is_recorded, 60, "the session records that its views were rebuilt")
    await await_settled(instances.url)
    (rebuild,) = await list_rebuilds(sessions[0])
    assert (rebuild.model, rebuild.cause, rebuild.first, rebuild.last) == (
        "session",
        "crashed",
        1,
        last.sequence,
    )
    look = await replay_session(store.log, sessions[0])
    assert look is not None
    tasks = [one for one in look.states.values() if isinstance(one, TaskRecord)]
    shown = to_bytes(show_tasks(sessions[0], last.sequence, tasks, 0))
    assert rebuild.sha256 == hashlib.sha256(shown).hexdigest()
    assert await list_rebuilds(sessions[1]) == [], "nothing of it differed"
    await relaying.duties.view_rebuild.schedule_all(SOURCE)
    await await_settled(instances.url)
    assert await list_rebuilds(sessions[0]) == [rebuild], "nothing differs any more"
    assert await list_problems(store) == []


@pytest.mark.parametrize("place", ["a list", "an inbox"])
async def test_surplus_row_is_reported_and_removed(
    instances: Instances, store: Store, place: str
) -> None:
    relaying = await instances.start("in_one", runs=False)
    stories, asked = await write_stories(store, relaying)
    if place == "a list":
        listed = keys.owner_index(HOME, OWNER.key, "echo", "completed")
        ask(instances.url, "ZADD", listed, 1, stories[0].task.id)
    else:
        ask(instances.url, "HSET", keys.inbox_open(HOME, OWNER.key), asked[1].id, "{}")
    assert await list_problems(store) != []
    assert (await verify_store(store, repair=True)).repaired != []
    await check_views(store, stories, asked)


async def name_session(story: Story) -> str:
    """Sets the title of a story's session; creates the session if needed."""
    held = await story.writes.load([story.session])
    decision = story.writes.begin(story.session.id, held)
    if decision.state(story.session) is None:
        created = SessionCreated(OWNER.key, OWNER.tenant, OWNER.id)
        decision.add(machine.decide(None, machine.BeginSession(story.session.id, created)))
    record = decision.state(story.session)
    assert isinstance(record, machine.SessionRecord)
    titled = machine.RelabelSession(SessionUpdated(title=f"of {story.session.id}"))
    decision.add(machine.decide(record, titled))
    written = await story.writes.commit(decision, held, AppendOptions())
    assert isinstance(written, Written)
    return story.session.id


def read_views(url: str) -> dict[str, object]:
    """Everything that lists and inbox of an owner are read from: sets whole, of views only the names."""
    names = sorted(name.decode() for name in cast("list[bytes]", ask(url, "KEYS", "*")))
    views: dict[str, object] = {}
    for name in names:
        match keys.read_parts(name)[0]:
            case "idx" | "inc" | "ts":
                views[name] = ask(url, "ZRANGE", name, 0, -1, "WITHSCORES")
            case "inz":
                views[name] = ask(url, "ZRANGE", name, 0, -1)
            case "open":
                # The time since when each is open limits a trim; a rebuilt set keeps its whole stream.
                views[name] = sorted(cast("list[bytes]", ask(url, "ZRANGE", name, 0, -1)))
            case "ino":
                views[name] = sorted(cast("list[bytes]", ask(url, "HKEYS", name)))
            case _:
                continue
    return views


@pytest.mark.requirement("I10")
async def test_deleted_views_are_equal_after_the_command_rebuilt_them(
    instances: Instances, store: Store
) -> None:
    relaying = await instances.start("in_one", runs=False)
    stories, asked = await write_stories(store, relaying)
    named = [await name_session(stories[0]), await name_session(Story(relaying.writes, SOURCE))]
    await relay_all(relaying)
    sessions = await store.projections.read_index(OWNER.key, SESSIONS, None, 100, ("open",))
    assert sorted(name for name, _ in sessions) == sorted(named), "also one without a task"
    lists = await list_tasks(store)
    before = read_views(instances.url)
    kinds = {keys.read_parts(name)[0] for name in before}
    assert kinds == {"idx", "inc", "inz", "ino", "open", "ts"}
    gone = [*before]
    inbox = StreamRef(StreamKind.INBOX, OWNER.key)
    epoch = await store.log.read_head(inbox)
    assert epoch is not None
    for name in (*gone, keys.head(inbox), keys.entries(inbox), keys.marks(HOME)):
        ask(instances.url, "DEL", name)
    forget_feed(instances.url)
    assert read_views(instances.url) == {}
    assert (await verify_store(store, repair=True)).repaired != []
    assert read_views(instances.url) == before
    assert await list_tasks(store) == lists
    assert await list_questions(store) == {asked[0].id, asked[2].id}
    made = await store.log.read_head(inbox)
    assert made is not None
    assert made.epoch != epoch.epoch, "old cursors get a gap"
    await check_views(store, stories, asked)
