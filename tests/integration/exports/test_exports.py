"""Ended sessions exported from one gateway and read at another: with equal ids and equal bytes."""

from __future__ import annotations

import tarfile
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import orjson
import pytest

from passerelle.cli.store_export import ExportRequest, run_export
from passerelle.cli.store_import import run_import
from passerelle.core.batch import EntityKind
from passerelle.core.errors import InvalidInput, NotFound
from passerelle.core.ids import ALL_SHARDS, Shard, shard_of
from passerelle.core.ports.log import StreamKind, StreamRef
from passerelle.core.principal import Principal
from passerelle.core.wire.json import JsonObject
from passerelle.delegation.verification.walk import verify_store
from passerelle.gateway.settings.model import Settings
from passerelle.gateway.store_setup import reach_store
from passerelle.store import keys
from passerelle.store.archive.forgetting import Forgetting
from passerelle.store.archive.frame import pack_frame, read_frame
from passerelle.store.archive.session_survey import SessionChoice
from passerelle.store.archive.session_tombstones import SessionTombstone, SessionTombstones
from passerelle.store.archive.tombstones import LegalHold
from passerelle.store.blobs import DirectoryBlobs
from passerelle.store.connection import pack
from passerelle.store.engine_binary import find_engine
from passerelle.store.exports.form import ExportScope
from passerelle.store.exports.member_file import MemberFile, MemberWriter
from passerelle.store.exports.session_names import open_names
from passerelle.store.exports.session_source import FoundSession, read_time
from passerelle.store.keys import SCHEMA
from passerelle.store.nodes import Nodes
from tests.integration.archive.test_archived_reads import (
    AWAY,
    LATER_MS,
    await_lost,
    begin,
    rig,
    settle_reads,
)
from tests.integration.callers.rig import Rig, open_rig, run_rig
from tests.integration.devices.asking import ADA, BOB, bearer
from tests.stores.make import fill, settle
from tests.support.engine import Server, ask, engine_server, run_server, started_legs
from tests.support.engine_dump import dump_engine
from tests.support.killing import Killed, kill_change
from tests.support.surface import Surface, find_changes

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Generator

    from tests.integration.callers.rig import Instance

__all__ = ["engine_server", "rig", "started_legs"]
pytestmark = pytest.mark.anyio
EVERYTHING = ExportRequest(ExportScope())


@dataclass(frozen=True, slots=True)
class Place:
    """The settings of a gateway on an engine."""

    url: str
    folder: Path
    secret_key: str

    @property
    def settings(self) -> Settings:
        given = {"redis_url": self.url, "data_dir": self.folder, "secret_key": self.secret_key}
        return Settings.model_validate(given)

    async def start(self, rig: Rig) -> Instance:
        there = replace(rig, url=self.url, folder=self.folder)
        agents = [{"name": "echo", "url": AWAY}]
        return await there.start(clients=[ADA, BOB], agents=agents, secret_key=self.secret_key)


@pytest.fixture
def target(tmp_path: Path) -> Generator[Place]:
    """An empty engine, with a secret key other than that of the rig."""
    with run_server(find_engine(None)) as server:
        yield Place(server.url, tmp_path / "target", "11" * 32)


def source_of(rig: Rig) -> Settings:
    return Place(rig.url, rig.folder, "00" * 32).settings


async def archive_some(settings: Settings) -> int:
    """Archives every second session that has ended; returns how many."""
    count = 0
    async with reach_store(settings) as store:
        ended = await store.ended_sessions.find(ALL_SHARDS, LATER_MS)
        for shard, sessions in ended.items():
            names = [one.session for one in sessions]
            left = await store.archiver.archive(shard, names[: (len(names) + 1) // 2])
            count += len(left.sessions)
    return count


async def list_problems(settings: Settings) -> list[str]:
    async with reach_store(settings) as store:
        return (await verify_store(store, rebuild=True)).lines


@pytest.mark.requirement("EXP-1")
async def test_imported_sessions_read_the_same_as_at_their_source(
    rig: Rig, target: Place, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    at = await begin(rig)
    is_lived = request.node.callspec.params["rig"] == "lived"
    if not is_lived:
        await await_lost(at)
    await settle_reads(at)
    await archive_some(source_of(rig))
    file = tmp_path / "away.psx"
    lines = await run_export(source_of(rig), EVERYTHING, file)
    assert " 0 of them from the archive" not in lines[0]
    left_out = {line.rpartition(": ")[2] for line in lines if line.startswith("left out: ")}
    assert "it is the home session of a caller" in left_out
    assert not is_lived or "something is open in it" in left_out
    report = await run_import(target.settings, file)
    assert f"exported: {report.counts['imported']} sessions" in lines[0]
    assert report.left_alone == []
    assert await list_problems(target.settings) == []
    before = dump_engine(target.url)
    again = await run_import(target.settings, file)
    assert (again.counts["imported"], again.counts["there"]) == (0, report.counts["imported"])
    assert sorted(dump_engine(target.url).splitlines()) == sorted(before.splitlines())
    there = await target.start(rig)
    compared = 0
    for who in ("ada", "bob"):
        here, away = (Surface(one.http, bearer(who), ["echo"]) for one in (at, there))
        whole: JsonObject = {"includeArtifacts": True, "historyLength": 50}
        listed = await away.call("echo", "ListTasks", whole)
        away.found.clear()
        for task in listed["tasks"]:
            await away.read_task("echo", task)
            await here.read_task("echo", task)
        assert find_changes(here.found, away.found) == {}
        compared += len(away.found)
    assert compared > 100


@pytest.fixture
async def filled(engine_server: Server, tmp_path: Path, anyio_backend: str) -> AsyncGenerator[Rig]:
    """A store that a gateway has filled before it stopped."""
    async with run_rig(engine_server.url, tmp_path / "source") as opened:
        at = await opened.start(clients=[ADA, BOB])
        await fill(at)
        await settle(at)
    async with open_rig(engine_server.url, tmp_path / "source") as opened:
        await archive_some(source_of(opened))
        yield opened


async def list_sessions(settings: Settings) -> dict[str, list[str]]:
    """Ended sessions by owner."""
    found = dict[str, list[str]]()
    async with reach_store(settings) as store:
        source = store.exporter.source
        with open_names(settings.data_dir) as names:
            listed = [found async for found in source.list_sessions(ExportScope(), names)]
        for _, sessions in listed:
            for session in sorted(sessions):
                read = await source.read(session)
                if isinstance(read, FoundSession):
                    found.setdefault(read.frame.find_owner() or "", []).append(session)
    return found


def read_names(file: Path) -> list[str]:
    """The sessions that an export file contains."""
    with tarfile.open(file) as tar:
        names = tar.getnames()
    return [name.rpartition("/")[2] for name in names if name.startswith("sessions/")]


@pytest.mark.requirement("EXP-1")
async def test_export_contains_exactly_the_requested_scope(filled: Rig, tmp_path: Path) -> None:
    source, file = source_of(filled), tmp_path / "some.psx"
    owned = await list_sessions(source)
    bob = Principal("bob").key
    assert len(owned[bob]) == 1
    [session] = owned[bob]
    every = sorted(one for some in owned.values() for one in some)
    async with reach_store(source) as store:
        frame = await store.exporter.source.find(session)
        assert frame is not None
        at_ms = read_time(frame)
        [task] = [ref.id for ref in frame.hashes if ref.kind is EntityKind.TASK]
    is_last = ExportScope(since_ms=at_ms)
    for request, expected in (
        (EVERYTHING, every),
        (ExportRequest(ExportScope(owner=bob)), [session]),
        (ExportRequest(ExportScope(session=session)), [session]),
        (ExportRequest(ExportScope(), task), [session]),
        (ExportRequest(is_last), [session]),
        (ExportRequest(ExportScope(until_ms=at_ms)), [one for one in every if one != session]),
        (ExportRequest(ExportScope(owner=Principal("carl").key)), []),
    ):
        await run_export(source, request, file)
        assert sorted(read_names(file)) == expected, request
        with pytest.raises(InvalidInput, match=r"^file: .+ exists already"):
            await run_export(source, request, file)
        file.unlink()
    unknown = f"{session[:-1]}{'0' if session[-1] != '0' else '1'}"
    with pytest.raises(NotFound):
        await run_export(source, ExportRequest(ExportScope(session=unknown)), file)
    with pytest.raises(NotFound):
        await run_export(source, ExportRequest(ExportScope(), f"{task[:-1]}0"), file)
    async with reach_store(source) as store:
        [still_open, *_] = await store.inspection.list_open_sessions()
    with pytest.raises(InvalidInput, match="session: something is open in it"):
        await run_export(source, ExportRequest(ExportScope(session=still_open)), file)
    assert list(tmp_path.glob("some.psx*")) == []


@pytest.mark.requirement("EXP-1")
async def test_import_keeps_differing_and_deleted_sessions_and_copies_legal_holds(
    filled: Rig, target: Place, tmp_path: Path
) -> None:
    source, file = source_of(filled), tmp_path / "away.psx"
    owned = await list_sessions(source)
    ada, bob = Principal("ada").key, Principal("bob").key
    async with reach_store(source) as store:
        assert await store.tombstones.hold(bob, LegalHold(1, "carl", "case 12"))
    assert "1 legal hold;" in (await run_export(source, EVERYTHING, file))[0]
    await run_import(target.settings, file)
    async with reach_store(target.settings) as store:
        assert await store.tombstones.find_hold(bob) == LegalHold(1, "carl", "case 12")
        await store.forgetting.forget(ada, "carl", store.clock.now_ms())
        [session] = owned[bob]
        head = keys.head(StreamRef(StreamKind.SESSION, session))
        await store.log.restore(shard_of(session), session)
        await store.nodes.update(shard_of(session), pack("HSET", head, "bytes", 1))
    before = sorted(dump_engine(target.url).splitlines())
    report = await run_import(target.settings, file)
    assert report.counts == {"forgotten": len(owned[ada]), "differs": 1}
    assert f"left alone: {session} of {bob} exists here with other bytes" in report.left_alone
    forgotten = f"left alone: {owned[ada][0]} of {ada} was deleted here, alone or with its owner"
    assert forgotten in report.left_alone
    assert sorted(dump_engine(target.url).splitlines()) == before


@pytest.mark.requirement("EXP-1", "FGT-4")
async def test_import_does_not_restore_a_deleted_session(
    filled: Rig, target: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Covers a session deleted before an import, and one deleted between the import's check and its write."""
    file, ada = tmp_path / "away.psx", Principal("ada").key
    before, meanwhile, *_ = (await list_sessions(source_of(filled)))[ada]
    await run_export(source_of(filled), EVERYTHING, file)
    await run_import(target.settings, file)
    await forget_alone(target.settings, before)
    list_all = SessionTombstones.list_all

    async def list_too_early(stones: SessionTombstones, shard: Shard) -> list[SessionTombstone]:
        found = await list_all(stones, shard)
        if shard == shard_of(meanwhile):
            await forget_alone(target.settings, meanwhile)
        return found

    monkeypatch.setattr(SessionTombstones, "list_all", list_too_early)
    report = await run_import(target.settings, file)
    why = "was deleted here, alone or with its owner"
    assert report.left_alone == [f"left alone: {before} of {ada} {why}"]
    assert report.counts["imported"] == 1
    left = (await list_sessions(target.settings))[ada]
    assert not {before, meanwhile} & {*left}


async def forget_alone(settings: Settings, session: str) -> None:
    async with reach_store(settings) as store:
        now_ms = store.clock.now_ms()
        choice = SessionChoice(now_ms, frozenset({session}), (shard_of(session),))
        assert (await store.session_forgetting.forget(choice, "carl")).count == 1


@pytest.mark.requirement("EXP-1")
async def test_export_leaves_out_the_sessions_of_a_deleted_owner(
    filled: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Covers a deletion in progress as well: the tombstone is written, and the content is not removed yet."""
    source, file = source_of(filled), tmp_path / "away.psx"
    owned = await list_sessions(source)
    ada, bob = Principal("ada").key, Principal("bob").key
    async with reach_store(source) as store:

        async def stop(*_arguments: object) -> None:
            raise Killed

        monkeypatch.setattr(Forgetting, "_remove", stop)
        with pytest.raises(Killed):
            await store.forgetting.forget(bob, "carl", store.clock.now_ms())
        monkeypatch.undo()
    await run_export(source, EVERYTHING, file)
    assert sorted(read_names(file)) == sorted(owned[ada])


def kill_at(monkeypatch: pytest.MonkeyPatch, step: int) -> list[int]:
    """Raises at the ``step``-th change of an import; returns the number of steps left as a list of one."""
    places = ((Nodes, ("run", "update")), (DirectoryBlobs, ("put_pieces", "put")))
    return kill_change(monkeypatch, places, step)


@pytest.mark.requirement("EXP-2")
async def test_import_killed_at_any_step_is_completed_by_the_next_import(
    filled: Rig, target: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "away.psx"
    sessions = sum(map(len, (await list_sessions(source_of(filled))).values()))
    await run_export(source_of(filled), EVERYTHING, file)
    step = 0
    while True:
        step += 1 + step // 6
        ask(target.url, "FLUSHALL")
        with monkeypatch.context() as patch:
            left = kill_at(patch, step)
            try:
                await run_import(target.settings, file)
                break
            except Killed:
                pass
        async with reach_store(target.settings) as store:
            assert (await verify_store(store)).lines == [], step
        report = await run_import(target.settings, file)
        assert report.left_alone == [], step
        assert report.counts["imported"] + report.counts["there"] == sessions
        assert report.left_alone == []
        async with reach_store(target.settings) as store:
            verified = await verify_store(store, rebuild=True)
            assert (verified.lines, verified.sessions) == ([], sessions), step
    assert left[0] > 0
    assert step > 40


@pytest.mark.requirement("EXP-2")
async def test_file_that_is_no_valid_export_is_refused_before_anything_is_written(
    filled: Rig, target: Place, tmp_path: Path
) -> None:
    source, file = source_of(filled), tmp_path / "away.psx"
    await run_export(source, EVERYTHING, file)
    with file.open("rb") as opened:
        whole = MemberFile(opened)
        members = {one.name: whole.read(one) for one in whole.list_members()}
    members.pop("manifest.sha256")
    session = next(name for name in members if name.startswith("sessions/"))
    content = next(name for name in members if name.startswith("content/"))
    another = [name for name in members if name.startswith("sessions/")][1]
    head = orjson.loads(members["export.json"])
    damaged: list[tuple[str, dict[str, bytes]]] = [
        (session, {session: members[session][:-9]}),
        (session, {session: members[another]}),
        (content, {content: b"other"}),
        ("export.json", {"export.json": b"[]"}),
        ("export.json", {"export.json": orjson.dumps(head | {"form": 2})}),
        ("export.json", {"export.json": orjson.dumps(head | {"schema": SCHEMA + 1})}),
        ("foreign/file", {"foreign/file": b"x"}),
        ("holds/pr_1", {"holds/pr_1": b"{}"}),
    ]
    frame = read_frame(members[session])
    damaged += [
        (session, {session: pack_frame(replace(frame, entries=entries))})
        for entries in (frame.entries[:-1], frame.entries[1:])
    ]
    ask(target.url, "FLUSHALL")
    for named, change in damaged:
        put = members | change
        summary = put.pop("summary.json")
        path = tmp_path / "changed.psx"
        write_members(path, put | {"summary.json": summary})
        with pytest.raises(InvalidInput) as refused:
            await run_import(target.settings, path)
        assert refused.value.field == named, str(refused.value)
    for missing in ("export.json", "summary.json"):
        path = tmp_path / "changed.psx"
        write_members(path, {name: one for name, one in members.items() if name != missing})
        with pytest.raises(InvalidInput, match=f"^{missing}: "):
            await run_import(target.settings, path)
    (tmp_path / "changed.psx").write_bytes(file.read_bytes()[:-2000])
    with pytest.raises(InvalidInput):
        await run_import(target.settings, tmp_path / "changed.psx")
    with pytest.raises(InvalidInput, match=r"^file: .+No such file"):
        await run_import(target.settings, tmp_path / "nothing.psx")
    assert dump_engine(target.url) == b""


def write_members(path: Path, members: dict[str, bytes]) -> None:
    with path.open("wb") as file, tempfile.TemporaryFile() as lines:
        writer = MemberWriter(file, lines)
        for name, content in members.items():
            writer.add(name, content)
        writer.finish()
