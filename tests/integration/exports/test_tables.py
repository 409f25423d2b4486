"""Stored data exported as tables: each row once, from memory or archive, with the values that reads return."""

from __future__ import annotations

import gc
import sys
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from importlib import import_module
from typing import TYPE_CHECKING, Any, cast

import orjson
import pytest

from passerelle.cli.store_export import ExportRequest, run_export
from passerelle.cli.store_tables import WITHOUT_EXTRA, run_table_export
from passerelle.core.errors import InvalidInput, NotFound
from passerelle.core.ids import shard_of
from passerelle.core.ports.log import StreamKind, StreamRef
from passerelle.core.principal import Principal
from passerelle.gateway.store_setup import reach_store
from passerelle.store.archive.forgetting import Forgetting
from passerelle.store.exports.form import ExportScope
from passerelle.store.exports.session_source import SessionSource
from passerelle.store.exports.tables.session_rows import FORM, TABLES
from tests.integration.archive.test_archived_reads import open_store
from tests.integration.callers.rig import Rig, open_rig, run_rig
from tests.integration.devices.asking import ADA, BOB, bearer
from tests.integration.exports.test_exports import EVERYTHING, archive_some, source_of
from tests.stores.dump import STORES, find_dump, load_dump
from tests.stores.make import fill, settle
from tests.support.engine import Server, ask, engine_server, started_legs
from tests.support.full_disk import limit_files
from tests.support.killing import Killed
from tests.support.tables import list_sessions, parquet, read_tables

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator
    from pathlib import Path

    from passerelle.core.wire.json import JsonObject
    from passerelle.store.exports.session_source import FoundSession, LeftOut
    from tests.integration.callers.rig import Instance

__all__ = ["engine_server", "started_legs"]
pytestmark = pytest.mark.anyio
HOME = "it is the home session of a caller"


@dataclass
class Known:
    """Stored data as gateway reads and engine keys show it before archiving."""

    rig: Rig
    tasks: set[str] = field(default_factory=set[str])
    actions: set[str] = field(default_factory=set[str])
    events: dict[str, list[JsonObject]] = field(default_factory=dict[str, "list[JsonObject]"])
    """By session, without home sessions."""
    listed: dict[str, JsonObject] = field(default_factory=dict[str, "JsonObject"])
    """Tasks as their callers read them, by id."""
    records: dict[str, JsonObject] = field(default_factory=dict[str, "JsonObject"])
    approvals: dict[str, JsonObject] = field(default_factory=dict[str, "JsonObject"])


async def read_known(rig: Rig, at: Instance) -> Known:
    known = Known(rig)
    keys = [one.decode() for one in cast("list[bytes]", ask(rig.url, "KEYS", "*"))]
    known.tasks = {name.rpartition(":")[2] for name in keys if ":t:task_" in name}
    known.actions = {name.rpartition(":")[2] for name in keys if ":a:act_" in name}
    for who in ("ada", "bob"):
        answer = await at.call(f"{who}-key", "ListTasks", {"pageSize": 100})
        for task in answer.json()["result"]["tasks"]:
            read = await at.http.get(f"/v1/tasks/{task['id']}", headers=bearer(who))
            known.listed[task["id"]], known.records[task["id"]] = task, read.json()
    for action in known.actions:
        answer = await at.http.get(f"/v1/approvals/{action}", headers=bearer("ada"))
        known.approvals[action] = answer.json()
    return known


async def read_events(rig: Rig) -> dict[str, list[JsonObject]]:
    """The events of each session without home sessions, read after all gateways have stopped."""
    events = dict[str, "list[JsonObject]"]()
    homes = {Principal(who).home_session for who in ("ada", "bob")}
    async with await open_store(rig) as store:
        for session in {*rig.list_sessions()} - homes:
            stream = StreamRef(StreamKind.SESSION, session)
            page = await store.log.read_page(stream, 0, 10_000)
            events[session] = [orjson.loads(one.data) for one in page]
    return events


@pytest.fixture
async def known(engine_server: Server, tmp_path: Path, anyio_backend: str) -> AsyncGenerator[Known]:
    """A store that a gateway has filled before it stopped; every second ended session is archived."""
    async with run_rig(engine_server.url, tmp_path / "source") as opened:
        price = {"currency": "EUR", "per_call": "0.10"}
        at = await opened.start(clients=[ADA, BOB], agent={"price": price})
        await fill(at)
        await settle(at)
        found = await read_known(opened, at)
    async with open_rig(engine_server.url, tmp_path / "source") as opened:
        found.rig = opened
        found.events = await read_events(opened)
        await archive_some(source_of(opened))
        yield found


def read_instant(text: str) -> datetime:
    return datetime.fromisoformat(text)


@pytest.mark.requirement("EXP-4")
async def test_each_row_is_exported_once_with_the_values_that_reads_return(
    known: Known, tmp_path: Path
) -> None:
    folder = tmp_path / "tables"
    lines = await run_table_export(source_of(known.rig), EVERYTHING, folder)
    tables = read_tables(folder)
    events = [(row["session_id"], row["sequence"], row["event_id"]) for row in tables["events"]]
    stored = [
        (session, one["sequence"], one["eventId"])
        for session, some in known.events.items()
        for one in some
    ]
    assert sorted(events) == sorted(stored)
    assert sorted(row["task_id"] for row in tables["tasks"]) == sorted(known.tasks)
    assert sorted(row["action_id"] for row in tables["approvals"]) == sorted(known.actions)
    assert f"{len(stored):,} events" in lines[0]
    archived = {row["session_id"] for row in tables["tasks"] if row["archived"]}
    assert archived
    assert {row["session_id"] for row in tables["tasks"] if not row["archived"]}
    assert f"of {len(known.events)} sessions, {len(archived)} of them from the archive" in lines[0]
    assert lines[1] == f"left out: {HOME}: {Principal('ada').home_session}"
    by_facade = {row["a2a_task_id"]: row for row in tables["tasks"]}
    assert {*known.listed} <= {*by_facade}
    for name, record in known.records.items():
        row = by_facade[name]
        for member, column in (("status", "status"), ("title", "title"), ("taskId", "a2a_task_id")):
            assert row[column] == record[member], (name, member)
        assert row["context_id"] == known.listed[name]["contextId"]
        assert row["created_at"] == read_instant(str(record["createdAt"]))
        attempts = [one for one in tables["attempts"] if one["task_id"] == row["task_id"]]
        shown = cast("list[JsonObject]", record["attempts"])
        assert [one["run_id"] for one in attempts] == [one["runId"] for one in shown]
        assert [one["status"] for one in attempts] == [one["status"] for one in shown]
        assert row["attempts"] == len(shown)
    failed = [row for row in tables["tasks"] if row["status"] == "failed"]
    assert failed
    for row in failed:
        assert row["ended_at"] >= row["started_at"] >= row["created_at"]
        assert row["duration_ms"] == round(
            (row["ended_at"] - row["started_at"]).total_seconds() * 1000
        )


@pytest.mark.requirement("EXP-4")
async def test_events_are_complete_and_costs_and_decisions_are_typed(
    known: Known, tmp_path: Path
) -> None:
    folder = tmp_path / "tables"
    await run_table_export(source_of(known.rig), EVERYTHING, folder)
    tables = read_tables(folder)
    for row in tables["events"]:
        some = known.events[str(row["session_id"])]
        envelope = some[int(row["sequence"]) - 1]
        payload = dict(cast("JsonObject", envelope["payload"]))
        frame = payload.pop("a2a", None)
        assert (orjson.loads(row["payload"]) if row["payload"] else {}) == payload
        assert (orjson.loads(row["a2a"]) if row["a2a"] else None) == frame
        assert row["at"] == read_instant(str(envelope["timestamp"]))
        for column, member in (("task_id", "taskId"), ("run_id", "runId"), ("type", "type")):
            assert row[column] == envelope.get(member)
    costs = tables["costs"]
    recorded = [row for row in costs if row["kind"] == "recorded"]
    assert {(row["amount"], row["currency"]) for row in costs} == {(Decimal("0.100000"), "EUR")}
    recorded_events = [
        one for some in known.events.values() for one in some if one["type"] == "cost.recorded"
    ]
    assert sorted(row["event_id"] for row in recorded) == sorted(
        str(one["eventId"]) for one in recorded_events
    )
    assert sum(row["amount"] for row in recorded) == Decimal("0.1") * len(recorded_events) > 0
    assert {row["agent"] for row in costs} == {"echo"}
    assert {row["task_id"] for row in recorded} <= known.tasks
    decided = [row for row in tables["approvals"] if row["decided_kind"] == "person"]
    assert sorted(row["state"] for row in decided) == ["allowed", "rejected"]
    for row in decided:
        view = known.approvals[row["action_id"]]
        assert (row["decided_by"], row["risk"], row["title"]) == ("ada", "medium", view["title"])
        assert row["waited_ms"] == round(
            (row["decided_at"] - row["opened_at"]).total_seconds() * 1000
        )
        assert row["return_state"] == "returned"
    still_open = [row for row in tables["approvals"] if row["state"] == "pending"]
    assert len(still_open) == 2
    assert {row["decided_at"] for row in still_open} == {None}
    for table in TABLES:
        schema = parquet.read_schema(folder / table.file)
        assert schema.names == [one.name for one in table.columns]
        assert schema.metadata[b"passerelle.form"] == b"%d" % FORM
        assert schema.metadata[b"passerelle.table"] == table.name.encode()
        assert [one.nullable for one in schema] == [one.optional for one in table.columns]
        times = [one.type for one in schema if one.name.endswith("_at")]
        assert {str(one) for one in times} <= {"timestamp[ms, tz=UTC]"}


@pytest.mark.requirement("EXP-4")
async def test_tables_contain_exactly_the_requested_scope(known: Known, tmp_path: Path) -> None:
    source = source_of(known.rig)
    bob = Principal("bob").key
    [mine] = [
        name
        for name, some in known.events.items()
        if cast("JsonObject", some[0]["payload"]).get("owner") == bob
    ]
    [task] = {str(one["taskId"]) for one in known.events[mine] if "taskId" in one}
    last = read_instant(str(known.events[mine][-1]["timestamp"]))
    at_ms = round(last.timestamp() * 1000)
    ends = {
        name: round(read_instant(str(some[-1]["timestamp"])).timestamp() * 1000)
        for name, some in known.events.items()
    }
    for number, (request, expected) in enumerate(
        (
            (ExportRequest(ExportScope(owner=bob)), {mine}),
            (ExportRequest(ExportScope(session=mine)), {mine}),
            (ExportRequest(ExportScope(), task), {mine}),
            (
                ExportRequest(ExportScope(since_ms=at_ms)),
                {n for n, e in ends.items() if e >= at_ms},
            ),
            (ExportRequest(ExportScope(until_ms=at_ms)), {n for n, e in ends.items() if e < at_ms}),
            (ExportRequest(ExportScope(owner=Principal("carl").key)), set[str]()),
        )
    ):
        folder = tmp_path / f"tables-{number}"
        await run_table_export(source, request, folder)
        assert list_sessions(read_tables(folder)) == expected, request
        manifest = orjson.loads((folder / "export.json").read_bytes())
        assert (manifest["sessions"], manifest["scope"]) == (
            len(expected),
            request.scope.write() or ({"session": mine} if request.task else {}),
        )
    folder = tmp_path / "none"
    unknown = f"{mine[:-1]}{'0' if mine[-1] != '0' else '1'}"
    with pytest.raises(NotFound):
        await run_table_export(source, ExportRequest(ExportScope(session=unknown)), folder)
    home = ExportRequest(ExportScope(session=Principal("ada").home_session))
    with pytest.raises(InvalidInput, match=f"session: {HOME}"):
        await run_table_export(source, home, folder)
    assert not folder.exists()


@pytest.mark.requirement("EXP-4")
async def test_sessions_archived_during_an_export_are_exported_once(
    known: Known, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, folder = source_of(known.rig), tmp_path / "tables"
    read, begun = SessionSource.read, list[str]()

    async def read_late(
        at: SessionSource, session: str, *, may_be_open: bool = False
    ) -> FoundSession | LeftOut | None:
        if not begun:
            await archive_some(source)
            await archive_some(source)
        begun.append(session)
        return await read(at, session, may_be_open=may_be_open)

    monkeypatch.setattr(SessionSource, "read", read_late)
    await run_table_export(source, EVERYTHING, folder)
    tables = read_tables(folder)
    assert sorted(row["task_id"] for row in tables["tasks"]) == sorted(known.tasks)
    assert len({*begun}) == len(begun)


@pytest.mark.requirement("EXP-4")
async def test_tables_leave_out_the_sessions_of_a_deleted_owner(
    known: Known, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Covers a deletion in progress as well: the tombstone is written, and the content is not removed yet."""
    source, bob = source_of(known.rig), Principal("bob").key

    async def stop(*_arguments: object) -> None:
        raise Killed

    async with reach_store(source) as store:
        monkeypatch.setattr(Forgetting, "_remove", stop)
        with pytest.raises(Killed):
            await store.forgetting.forget(bob, "carl", store.clock.now_ms())
        monkeypatch.undo()
    await run_table_export(source, EVERYTHING, tmp_path / "tables")
    tables = read_tables(tmp_path / "tables")
    assert {row["owner"] for row in tables["tasks"]} == {Principal("ada").key}
    async with reach_store(source) as store:
        await store.forgetting.forget(bob, "carl", store.clock.now_ms())
    await run_table_export(source, EVERYTHING, tmp_path / "after")
    assert read_tables(tmp_path / "after") == tables


@pytest.mark.requirement("EXP-4")
async def test_damaged_session_is_left_out_and_reported(known: Known, tmp_path: Path) -> None:
    source, folder = source_of(known.rig), tmp_path / "tables"
    session = next(one for one in known.rig.list_sessions() if one in known.events)
    task = next(str(one["taskId"]) for one in known.events[session] if "taskId" in one)
    key = f"{{{shard_of(task).tag}}}:t:{task}"
    stored = cast("bytes", ask(known.rig.url, "HGET", key, "s"))
    ask(known.rig.url, "HSET", key, "s", stored.replace(b'"title"', b'"tilte"'))
    lines = await run_table_export(source, EVERYTHING, folder)
    assert f"left out: it is damaged, which passerelle verify names: {session}" in lines
    assert list_sessions(read_tables(folder)) == {*known.events} - {session}


@asynccontextmanager
async def open_stored(url: str, folder: Path, name: str) -> AsyncGenerator[Rig]:
    """A recorded store with some sessions archived."""
    ask(url, "FLUSHALL")
    load_dump(url, folder / "blobs", find_dump(name))
    async with open_rig(url, folder) as rig:
        await archive_some(source_of(rig))
        yield rig


@pytest.fixture
async def stored(engine_server: Server, tmp_path: Path, anyio_backend: str) -> AsyncGenerator[Rig]:
    async with open_stored(engine_server.url, tmp_path / "source", STORES[-1]) as rig:
        yield rig


@pytest.mark.requirement("EXP-4")
@pytest.mark.parametrize("name", STORES)
async def test_recorded_stores_are_exported(
    engine_server: Server, tmp_path: Path, name: str, anyio_backend: str
) -> None:
    async with open_stored(engine_server.url, tmp_path / "source", name) as rig:
        lines = await run_table_export(source_of(rig), EVERYTHING, tmp_path / "tables")
    tables = read_tables(tmp_path / "tables")
    assert "damaged" not in "".join(lines)
    assert {row["status"] for row in tables["tasks"]} >= {"completed", "failed"}
    assert {row["state"] for row in tables["approvals"]} >= {"allowed", "rejected", "pending"}
    assert len({(row["session_id"], row["sequence"]) for row in tables["events"]}) == len(
        tables["events"]
    )


@pytest.mark.requirement("EXP-5")
async def test_unusable_folder_is_refused_and_not_changed(stored: Rig, tmp_path: Path) -> None:
    source = source_of(stored)
    file, full, whole = tmp_path / "file", tmp_path / "full", tmp_path / "whole"
    file.write_text("something")
    full.mkdir()
    (full / "mine.txt").write_text("something")
    await run_table_export(source, EVERYTHING, whole)
    before = {one.name: one.read_bytes() for one in whole.iterdir()}
    stopped = tmp_path / "stopped"
    stopped.mkdir()
    (stopped / "tasks.parquet").write_text("something")
    for folder, reason in (
        (file, "is there already, and no folder"),
        (full, "is not empty: it has mine.txt"),
        (whole, "has an export already"),
        (stopped, "is not empty: it has tasks.parquet, of an export that was stopped: delete it"),
        (tmp_path / "nowhere" / "tables", "No such file or directory"),
        (file / "tables", "Not a directory"),
    ):
        with pytest.raises(InvalidInput) as refused:
            await run_table_export(source, EVERYTHING, folder)
        assert refused.value.field == "folder"
        assert str(refused.value).endswith(reason), str(refused.value)
    assert {one.name: one.read_bytes() for one in whole.iterdir()} == before
    assert [one.name for one in full.iterdir()] == ["mine.txt"]
    empty = tmp_path / "empty"
    empty.mkdir()
    (empty / "events.parquet.part").write_text("of one that was killed")
    await run_table_export(source, EVERYTHING, empty)
    assert read_tables(empty).keys() == read_tables(whole).keys()
    assert {one.stat().st_mode & 0o777 for one in empty.iterdir()} == {0o600}
    assert whole.stat().st_mode & 0o777 == 0o700


@pytest.mark.requirement("EXP-5")
async def test_full_disk_at_any_byte_leaves_no_files(stored: Rig, tmp_path: Path) -> None:
    source, folder, file = source_of(stored), tmp_path / "tables", tmp_path / "away.psx"
    await run_table_export(source, EVERYTHING, folder)
    await run_export(source, EVERYTHING, file)
    tables = max(one.stat().st_size for one in folder.iterdir())
    sizes = {folder: tables, file: file.stat().st_size}
    for path, write in ((folder, run_table_export), (file, run_export)):
        for number in range(10):
            # More than the 48 bytes that the store writes to check its folder.
            most = 48 + (sizes[path] - 48) * number // 10
            there = tmp_path / f"full-{path.name}"
            with limit_files(most), pytest.raises(InvalidInput, match=r"File too large$"):
                await write(source, EVERYTHING, there)
            gc.collect()
            assert not list(tmp_path.glob(f"full-{path.name}*")), most
    there = tmp_path / "kept"
    there.mkdir()
    with limit_files(tables - 1), pytest.raises(InvalidInput):
        await run_table_export(source, EVERYTHING, there)
    assert list(there.iterdir()) == []
    await run_table_export(source, EVERYTHING, there)
    assert read_tables(there) == read_tables(folder)


@pytest.mark.requirement("EXP-5")
async def test_second_export_into_a_folder_in_use_is_refused(
    stored: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, folder = source_of(stored), tmp_path / "tables"
    read, refused = SessionSource.read, list[str]()

    async def read_and_try(
        at: SessionSource, session: str, *, may_be_open: bool = False
    ) -> FoundSession | LeftOut | None:
        if not refused:
            refused.append("")
            with pytest.raises(InvalidInput) as error:
                await run_table_export(source, EVERYTHING, folder)
            refused.append(str(error.value))
        return await read(at, session, may_be_open=may_be_open)

    monkeypatch.setattr(SessionSource, "read", read_and_try)
    await run_table_export(source, EVERYTHING, folder)
    assert refused[1] == f"folder: another export is being written to {folder}"
    read_tables(folder)


async def test_missing_extra_is_reported_with_the_command_to_install_it(
    stored: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import_module("passerelle.store.exports.tables.parquet_folder")
    for name in [one for one in sys.modules if one.startswith("pyarrow")]:
        monkeypatch.setitem(cast("dict[str, Any]", sys.modules), name, None)
    monkeypatch.delitem(sys.modules, "passerelle.store.exports.tables.parquet_folder")
    with pytest.raises(InvalidInput) as refused:
        await run_table_export(source_of(stored), EVERYTHING, tmp_path / "tables")
    assert str(refused.value) == f"format: {WITHOUT_EXTRA}"
    assert not (tmp_path / "tables").exists()
