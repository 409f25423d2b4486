"""Verification of a store on a real engine: intact stores pass, and each kind of damage is reported."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Generator
from dataclasses import replace
from pathlib import Path
from typing import cast

import orjson
import pytest

from passerelle.cli.verify import run_verify
from passerelle.core.batch import (
    Appended,
    Batch,
    DueChange,
    EntityKind,
    EntityRef,
    IdempotencyRow,
    Incarnation,
)
from passerelle.core.errors import ConfigInvalid, NotFound
from passerelle.core.events import EncodedEvent, Event, Fact, VendorPayload, encode_event
from passerelle.core.facts import Scope
from passerelle.core.ids import Shard
from passerelle.core.payloads.runtime import WarningRaised
from passerelle.core.ports.leases import LeaseRequest
from passerelle.core.ports.log import Entry, StreamKind, StreamRef
from passerelle.core.wire.json import JsonObject
from passerelle.delegation.duties.factless_writes import FactlessWrites
from passerelle.delegation.verification.rebuild import find_difference
from passerelle.delegation.verification.report import VerifyReport
from passerelle.delegation.verification.walk import verify_store
from passerelle.gateway.settings.model import Settings
from passerelle.runtime.common.clock import SystemIds
from passerelle.store import keys
from passerelle.store.engine import EmbeddedEngine
from passerelle.store.engine_binary import find_engine
from passerelle.store.engine_process import EngineSettings
from passerelle.store.store import Store, StoreSettings
from tests.integration.duties.story import Story, make_writes
from tests.support.engine import Server, ask, run_server
from tests.support.stored_events import list_stored, rewrite_stream

pytestmark = pytest.mark.anyio

SHARD = Shard(30)
DRIVER = Incarnation("in_one", 1)


@pytest.fixture(scope="module")
def server() -> Generator[Server]:
    with run_server(find_engine(None)) as running:
        yield running


@pytest.fixture
async def store(server: Server, tmp_path: Path, anyio_backend: str) -> AsyncGenerator[Store]:
    ask(server.url, "FLUSHDB")
    async with await Store.open(StoreSettings(server.url, tmp_path / "blobs")) as opened:
        yield opened


async def make_story(store: Store) -> Story:
    """A driven task with output, an answered question and an open one."""
    await store.leases.extend(LeaseRequest(SHARD, DRIVER, opens=True, wants_duty=False), 60_000)
    story = Story(make_writes(store), SHARD, DRIVER)
    await story.begin()
    await story.show()
    await story.answer(await story.ask())
    await story.ask("and now")
    return story


def find_stream(story: Story) -> StreamRef:
    return StreamRef(StreamKind.SESSION, story.session.id)


def replace_entry(
    server: Server,
    story: Story,
    sequence: int,
    *,
    event_id: str | None = None,
    data: bytes | None = None,
) -> None:
    """Rewrites a stream with one event changed."""

    def change(entry: Entry) -> Entry:
        if entry.sequence != sequence:
            return entry
        if data is not None:
            return replace(entry, data=data, frame=None)
        return replace(entry, event_id=event_id or entry.event_id)

    rewrite_stream(server.url, find_stream(story), change)


def kinds(report: VerifyReport) -> list[str]:
    return [problem.kind for problem in report.problems]


async def push(store: Store, story: Story, *events: EncodedEvent) -> None:
    """Stores events without a decision of a state machine."""
    op = SystemIds().mint("op", SHARD)
    row = IdempotencyRow(op, op, b"", 60_000)
    batch = Batch(story.session.id, op, 0, "0a1b2c3d", events=events, idem=row)
    assert isinstance(await store.log.append(batch), Appended)


def make_event(story: Story, fact: Fact) -> Event:
    return Event(SystemIds().mint("ev", SHARD), "2026-11-20T12:00:00.000Z", "rt", fact)


@pytest.mark.requirement("I4", "VAL-1")
async def test_intact_store_replays_to_its_snapshots_byte_for_byte(store: Store) -> None:
    first, second = await make_story(store), await make_story(store)
    await second.fail()
    report = await verify_store(store)
    assert report.lines == []
    assert report.ok
    assert report.sessions == 2
    assert report.entities == 10, "per story a session, a thread, a task and two questions"
    heads = [
        await store.log.read_head(StreamRef(StreamKind.SESSION, story.session.id))
        for story in (first, second)
    ]
    assert report.events == sum(head.sequence for head in heads if head)
    assert report.summary == f"verify: 2 sessions, {report.events} events, 10 snapshots; 0 problems"
    again = await verify_store(store)
    assert again == report, "a second verification is equal"


@pytest.mark.requirement("I10")
async def test_rebuilt_read_models_are_equal(store: Store) -> None:
    await make_story(store)
    await (await make_story(store)).fail()
    report = await verify_store(store, rebuild=True)
    assert (report.lines, report.rebuilt) == ([], 2)
    assert ", 2 sessions rebuilt; 0 problems" in report.summary


@pytest.mark.requirement("I10")
async def test_missing_and_surplus_derived_rows_are_reported(store: Store, server: Server) -> None:
    story = await make_story(store)
    session, task = story.session.id, story.task.id
    stray = SystemIds().mint("task", SHARD)
    still_open = keys.session_open(SHARD, session)
    listed = keys.session_tasks(SHARD, session)
    none: set[tuple[str, str]] = set()
    for command, expected in (
        (("ZADD", still_open, "1", stray), {("open_set", stray), ("stray_row", stray)}),
        (("ZREM", still_open, stray), none),
        (("ZADD", listed, "1", stray), {("stray_row", stray)}),
        (("ZREM", listed, stray), none),
        (("ZREM", still_open, task), {("open_set", task)}),
        (
            ("ZREM", listed, task),
            {("open_set", task), ("read_model", session), ("read_model", story.thread.id)},
        ),
    ):
        ask(server.url, *command)
        report = await verify_store(store, rebuild=True)
        assert {(one.kind, one.subject) for one in report.problems} == expected, command


@pytest.mark.requirement("I10")
async def test_rows_before_the_mark_of_the_relay_must_exist(store: Store) -> None:
    story = await make_story(store)
    feed = await store.projections.read_feed(SHARD, None, 512)
    await store.projections.move_mark(SHARD, "relay", feed[-1].id)
    report = await verify_store(store, rebuild=True)
    found = {(one.kind, one.subject) for one in report.problems}
    assert ("unlisted", story.task.id) in found
    assert {kind for kind, _ in found} == {"unlisted", "inbox"}


async def test_differences_are_named_by_their_path() -> None:
    one: JsonObject = {"a": [{"b": 1}], "c": None}
    assert find_difference(one, {"a": [{"b": 1}], "c": None}) is None
    assert find_difference(one, {"a": [{"b": 2}], "c": None}) == "a[0].b"
    assert find_difference(one, {"a": [], "c": None}) == "a"
    assert find_difference(one, {**one, "d": 1}) == "d"
    assert find_difference(1, 2) == "the whole"


async def test_single_session_is_verified(store: Store) -> None:
    first, second = await make_story(store), await make_story(store)
    await store.log.load([first.task])
    report = await verify_store(store, second.session.id)
    assert (report.ok, report.sessions, report.entities) == (True, 1, 5)
    for unknown in ("nonsense", SystemIds().mint("se", SHARD)):
        with pytest.raises(NotFound):
            await verify_store(store, unknown)


@pytest.mark.requirement("I4")
async def test_edited_snapshot_is_reported_with_its_first_differing_byte(
    store: Store, server: Server
) -> None:
    story = await make_story(store)
    (loaded,) = await store.log.load([story.task])
    edited = loaded.snapshot.replace(b"say hello", b"say hallo")
    ask(server.url, "HSET", keys.entity(story.task), "s", edited.decode())
    report = await verify_store(store)
    assert kinds(report) == ["mismatch"]
    assert report.problems[0].subject == story.task.id
    at = loaded.snapshot.index(b"say hello") + len("say h")
    assert f"at byte {at} " in report.problems[0].detail
    assert not report.ok


async def test_snapshot_of_another_schema_is_counted_and_not_compared(
    store: Store, server: Server
) -> None:
    story = await make_story(store)
    (loaded,) = await store.log.load([story.thread])
    older = loaded.snapshot.replace(b'"schema":1', b'"schema":0', 1)
    ask(server.url, "HSET", keys.entity(story.thread), "s", older.decode())
    report = await verify_store(store)
    assert (report.ok, report.other_schema) == (True, 1)


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ([(b',"refusals":{}', b"")], []),
        ([(b',"refusals":{}', b""), (b'"turns":1', b'"turns":2')], ["mismatch"]),
        ([(b',"refusals":{}', b',"extra":{}')], ["mismatch"]),
        ([(b',"turns":1', b"")], ["mismatch"]),
    ],
    ids=[
        "lacks a member added later",
        "differs elsewhere",
        "has an extra member",
        "lacks a required member",
    ],
)
async def test_snapshot_without_members_added_later_is_equal(
    store: Store, server: Server, changes: list[tuple[bytes, bytes]], found: list[str]
) -> None:
    """Members missing in earlier versions are accepted; other differences are not."""
    story = await make_story(store)
    (loaded,) = await store.log.load([story.thread])
    edited = loaded.snapshot
    for old, new in changes:
        assert old in edited
        edited = edited.replace(old, new)
    ask(server.url, "HSET", keys.entity(story.thread), "s", edited.decode())
    report = await verify_store(store)
    assert (kinds(report), report.earlier_form) == (found, 0 if found else 1)


@pytest.mark.requirement("I3", "VAL-1")
async def test_removed_entry_is_a_gap(store: Store, server: Server) -> None:
    story = await make_story(store)
    rewrite_stream(
        server.url, find_stream(story), lambda entry: None if entry.sequence == 4 else entry
    )
    report = await verify_store(store)
    gap = next(problem for problem in report.problems if problem.kind == "gap")
    assert gap.detail == "4 to 4 are missing"
    assert "chain" not in kinds(report), "a missing entry is reported once"


@pytest.mark.requirement("I3")
async def test_removed_last_entry_is_a_gap(store: Store, server: Server) -> None:
    story = await make_story(store)
    stream = StreamRef(StreamKind.SESSION, story.session.id)
    head = await store.log.read_head(stream)
    assert head is not None
    assert ask(server.url, "XDEL", keys.entries(stream), f"{head.sequence}-0") == 1
    assert "gap" in kinds(await verify_store(store))


@pytest.mark.requirement("VAL-1")
async def test_replaced_event_id_breaks_the_chain_at_its_position(
    store: Store, server: Server
) -> None:
    story = await make_story(store)
    forged = SystemIds().mint("ev", SHARD)
    replace_entry(server, story, 3, event_id=forged)
    report = await verify_store(store)
    assert sorted(kinds(report)) == ["chain", "entry"]
    by_kind = {problem.kind: problem for problem in report.problems}
    assert by_kind["entry"].subject == forged
    assert by_kind["chain"].detail.startswith("entry 4 follows ")


@pytest.mark.requirement("VAL-1")
async def test_repeated_event_id_is_reported(store: Store, server: Server) -> None:
    story = await make_story(store)
    double = list_stored(server.url, find_stream(story))[1].event_id
    replace_entry(server, story, 3, event_id=double)
    assert "repeated" in kinds(await verify_store(store))


@pytest.mark.requirement("ENV-2")
async def test_event_id_of_two_operations_is_reported(store: Store) -> None:
    story = await make_story(store)
    event = make_event(
        story, Fact(Scope(story.session.id, task_id=story.task.id), WarningRaised("w", "once"))
    )
    for _ in range(2):
        await push(store, story, encode_event(event))
    problems = (await verify_store(store)).problems
    assert [(one.kind, one.subject) for one in problems] == [("repeated", event.event_id)]


@pytest.mark.requirement("ENV-6")
async def test_event_without_a_required_id_is_reported(store: Store, server: Server) -> None:
    story = await make_story(store)
    entry = next(
        one
        for one in list_stored(server.url, find_stream(story))
        if one.type == "permission.requested"
    )
    envelope = orjson.loads(entry.data)
    del envelope["turnId"]
    replace_entry(server, story, entry.sequence, data=orjson.dumps(envelope))
    report = await verify_store(store)
    assert kinds(report) == ["missing_id"]
    assert report.problems[0].subject == envelope["eventId"]
    assert report.problems[0].detail == "permission.requested without turn_id"


@pytest.mark.parametrize("rebuild", [False, True])
@pytest.mark.parametrize(("of", "field"), [("task", "v"), ("session", "v"), ("session", "seq")])
async def test_key_with_a_damaged_number_is_reported_and_the_rest_is_read(
    store: Store, server: Server, of: str, field: str, *, rebuild: bool
) -> None:
    story, other = await make_story(store), await make_story(store)
    ref: EntityRef = getattr(story, of)
    ask(server.url, "HSET", keys.entity(ref), field, "x")
    report = await verify_store(store, rebuild=rebuild)
    assert not report.ok
    found = [one for one in report.problems if one.kind == "damaged"]
    assert ref.id in {one.subject for one in found}
    assert all(f"'{field}' is b'x'" in one.detail for one in found)
    assert other.session.id not in {one.session for one in report.problems}


async def test_damaged_event_is_reported_and_the_rest_is_read(store: Store, server: Server) -> None:
    story = await make_story(store)
    replace_entry(server, story, 2, data=b"{}")
    report = await verify_store(store)
    assert "unreadable" in kinds(report)
    assert report.events > 2


async def test_damaged_append_is_reported_and_the_rest_is_read(
    store: Store, server: Server
) -> None:
    story = await make_story(store)
    key = keys.entries(find_stream(story))
    rows = cast("list[tuple[bytes, dict[bytes, bytes]]]", ask(server.url, "XRANGE", key, "-", "+"))
    ask(server.url, "DEL", key)
    for number, (place, members) in enumerate(rows):
        packed = b"\x00" if number == 1 else members[b"d"]
        ask(server.url, "XADD", key, place, "p", members[b"p"], "d", packed)
    report = await verify_store(store)
    assert {"unreadable", "chain"} <= set(kinds(report))
    assert report.events > 2


@pytest.mark.requirement("ENV-13")
async def test_vendor_events_are_counted_and_change_nothing(store: Store) -> None:
    story = await make_story(store)
    scope = Scope(story.session.id, story.thread.id, story.turn, story.task.id, story.run)
    warning = Fact(scope, WarningRaised("odd", "a word of its own"))
    vendor = [Fact(scope, VendorPayload(f"x.acme.{n}", {"n": n})) for n in range(20)]
    events = [encode_event(make_event(story, fact)) for fact in (warning, *vendor)]
    await push(store, story, *events)
    report = await verify_store(store)
    assert (report.ok, report.vendor_events) == (True, 20)
    assert "20 vendor events" in report.summary


async def test_snapshot_without_events_is_reported(store: Store, server: Server) -> None:
    story = await make_story(store)
    (loaded,) = await store.log.load([story.task])
    stray = EntityRef(EntityKind.TASK, SystemIds().mint("task", SHARD))
    text = loaded.snapshot.decode()
    ask(server.url, "HSET", keys.entity(stray), "v", "1", "op", "op", "s", text)
    report = await verify_store(store)
    assert [(problem.kind, problem.subject) for problem in report.problems] == [("stray", stray.id)]


@pytest.mark.requirement("I9", "AP-3")
async def test_task_without_driver_due_row_or_question_is_reported(
    store: Store, server: Server
) -> None:
    story = Story(make_writes(store), SHARD)
    await story.begin()
    report = await verify_store(store)
    assert [(p.kind, p.subject) for p in report.problems] == [("undriven", story.task.id)]
    factless_writes = FactlessWrites(store.log, SystemIds())
    limit, row = f"timeout:{story.task.id}", f"send:{story.task.id}"
    await factless_writes.write(SHARD, due=(DueChange(limit, 4_000_000_000_000),))
    assert not (await verify_store(store)).ok, "a time limit alone is not enough"
    await factless_writes.write(SHARD, due=(DueChange(row, 4_000_000_000_000),))
    assert (await verify_store(store)).ok, "a due row is enough"
    await factless_writes.write(SHARD, due=(DueChange(row, None),))
    assert not (await verify_store(store)).ok
    await story.ask()
    ask(server.url, "DEL", keys.due(SHARD))
    assert (await verify_store(store)).ok, "an open question is enough"


@pytest.mark.requirement("I9")
async def test_driven_task_needs_a_lease_or_a_due_row(store: Store, server: Server) -> None:
    await store.leases.extend(LeaseRequest(SHARD, DRIVER, opens=True, wants_duty=False), 60_000)
    story = Story(make_writes(store), SHARD, DRIVER)
    await story.begin()
    assert (await verify_store(store)).ok
    await store.leases.release(SHARD, DRIVER)
    assert (await verify_store(store)).ok, "its runs have due rows for the next instance"
    ask(server.url, "DEL", keys.due(SHARD))
    assert kinds(await verify_store(store)) == ["undriven"]


async def test_only_the_chain_of_a_trimmed_session_is_verified(
    store: Store, server: Server
) -> None:
    story = await make_story(store)
    stream = find_stream(story)
    rewrite_stream(server.url, stream)
    ask(server.url, "XTRIM", keys.entries(stream), "MINID", "4-0")
    ask(server.url, "HSET", keys.head(stream), "first", "4")
    report = await verify_store(store)
    assert (report.ok, report.trimmed, report.entities) == (True, 1, 0)


@pytest.mark.requirement("I4", "VAL-1")
async def test_command_opens_the_configured_store(tmp_path: Path, anyio_backend: str) -> None:
    settings = Settings(data_dir=tmp_path / "state")
    with pytest.raises(ConfigInvalid):
        await run_verify(settings)
    assert not settings.data_dir.exists(), "verification creates nothing"
    engine = await EmbeddedEngine.start(EngineSettings(settings.data_dir))
    async with engine:
        async with await Store.open(
            StoreSettings(engine.url, settings.data_dir / "blobs")
        ) as store:
            story = await make_story(store)
        online = await run_verify(settings, story.session.id)
        assert (online.ok, online.sessions) == (True, 1), "the engine of a running gateway"
    report = await run_verify(settings, story.session.id)
    assert (report.ok, report.sessions) == (True, 1)
