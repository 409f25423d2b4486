"""``passerelle store backup`` next to a working gateway, and ``restore`` of the backup."""

from __future__ import annotations

import shutil
import subprocess
from functools import partial
from typing import TYPE_CHECKING

import anyio.to_thread
import pytest

from passerelle.cli.exit_status import ExitStatus
from passerelle.cli.store_backup import run_backup, run_restore
from passerelle.cli.verify import run_verify
from passerelle.core.batch import EntityKind, EntityRef
from passerelle.gateway.settings.model import Settings
from passerelle.gateway.store_setup import reach_store
from passerelle.store.backup import Backup
from passerelle.store.exports.form import ExportScope
from passerelle.store.exports.session_names import open_names
from tests.e2e.test_cli import run
from tests.e2e.test_store_export import has_left_some, keep_working
from tests.support.processes import AGENT, Answer, count_stored, open_caller, run_gateway
from tests.support.scripted_peer import ScriptedPeer
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.anyio
BACKUPS = 3


def call(folder: Path, verb: str, place: Path, data: Path) -> subprocess.CompletedProcess[str]:
    return run(folder, "store", verb, place, "--data-dir", data)


async def call_running(
    folder: Path, verb: str, place: Path, data: Path
) -> subprocess.CompletedProcess[str]:
    return await anyio.to_thread.run_sync(partial(call, folder, verb, place, data))


@pytest.mark.requirement("EXP-3")
async def test_work_acknowledged_before_a_backup_is_restored(
    tmp_path: Path,
) -> None:
    keep, data, restored = {"memory": "1s"}, tmp_path / "data", tmp_path / "another" / "data"
    async with ScriptedPeer(AGENT) as peer:
        async with (
            run_gateway(tmp_path, {AGENT: peer.url}, data_dir=str(data), retention=keep) as gateway,
            open_caller(gateway) as caller,
        ):
            asked = await caller.begin("ask Which one?")
            await caller.await_question(asked["id"])
            async with keep_working(caller) as ended:
                await wait_until(
                    lambda: len(ended) > 20 and has_left_some(gateway, len(ended)),
                    30,
                    "some sessions have left memory",
                )
                before = 0
                for number in range(BACKUPS):
                    before = len(ended)
                    made = await call_running(
                        tmp_path, "backup", tmp_path / f"backup-{number}", data
                    )
                    assert made.returncode == ExitStatus.DONE, made.stderr
            tasks = ended[:before]
            read = [await caller.get_task(task["id"]) for task in tasks]
        last = tmp_path / f"backup-{BACKUPS - 1}"
        done = await call_running(tmp_path, "restore", last, restored)
        assert done.returncode == ExitStatus.DONE, done.stderr
        assert restored.stat().st_mode & 0o777 == 0o700
        for number in range(BACKUPS - 1):
            place = tmp_path / f"restored-{number}"
            await call_running(tmp_path, "restore", tmp_path / f"backup-{number}", place)
            assert (await run_verify(Settings(data_dir=place), rebuild=True)).lines == []
        again = await call_running(tmp_path, "restore", last, restored)
        assert again.returncode == ExitStatus.CALLER
        assert f"data_dir: {restored} is not empty" in again.stderr
        another = restored.parent
        async with (
            run_gateway(
                another, {AGENT: peer.url}, data_dir=str(restored), retention=keep
            ) as gateway,
            open_caller(gateway) as caller,
        ):
            assert [await caller.get_task(task["id"]) for task in tasks] == read
            answered = await caller.send("this one", taskId=asked["id"])
            assert answered["status"]["state"] == "TASK_STATE_COMPLETED"
    assert (await run_verify(Settings(data_dir=restored), rebuild=True)).lines == []


@pytest.mark.requirement("EXP-3")
async def test_incomplete_backup_is_refused_and_leaves_no_files(tmp_path: Path) -> None:
    data, backup, restored = tmp_path / "data", tmp_path / "backup", tmp_path / "restored"
    async with (
        ScriptedPeer(AGENT) as peer,
        run_gateway(tmp_path, {AGENT: peer.url}, data_dir=str(data)) as gateway,
        open_caller(gateway) as caller,
    ):
        for text in ("hello", "big"):
            await caller.send(text)
        made = await call_running(tmp_path, "backup", backup, data)
        assert made.returncode == ExitStatus.DONE, made.stderr
        again = await call_running(tmp_path, "backup", backup, data)
        assert f"directory: {backup} is not empty" in again.stderr
    base = next(backup.glob("appendonlydir/*.base.rdb")).relative_to(backup)
    blob = next(one for one in (backup / "blobs").rglob("*") if one.is_file()).relative_to(backup)
    cases: dict[str, bytes | None] = {
        "backup.json": None,
        "manifest.sha256": b"",
        str(base): b"REDIS0011",
        str(blob): None,
    }
    for name, content in cases.items():
        damaged = tmp_path / "damaged"
        shutil.copytree(backup, damaged)
        if content is None:
            (damaged / name).unlink()
        else:
            (damaged / name).write_bytes(content)
        refused = await call_running(tmp_path, "restore", damaged, restored)
        assert refused.returncode == ExitStatus.CALLER
        assert f"error: {name}: " in refused.stderr
        assert {one.name for one in tmp_path.iterdir()} & {"restored"} == set()
        assert not list(tmp_path.glob(".restored*"))
        shutil.rmtree(damaged)
    done = await call_running(tmp_path, "restore", backup, restored)
    assert done.returncode == ExitStatus.DONE, done.stderr
    elsewhere = {"PASSERELLE_REDIS_URL": "redis://127.0.0.1:9"}
    served = await anyio.to_thread.run_sync(
        partial(run, tmp_path, "store", "backup", tmp_path / "b", variables=elsewhere)
    )
    assert served.returncode == ExitStatus.CALLER
    assert "redis_url: is set: a backup does not include its server" in served.stderr


@pytest.mark.requirement("EXP-3")
@pytest.mark.parametrize("what", ["an owner", "sessions"])
async def test_data_erased_during_a_backup_is_erased_after_its_restore(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """The engine is copied first and the objects later: the backup contains the sessions, and the tombstone."""
    data, backup, restored = tmp_path / "data", tmp_path / "backup", tmp_path / "restored"
    keep = {"memory": "1s"}
    async with (
        ScriptedPeer(AGENT) as peer,
        run_gateway(tmp_path, {AGENT: peer.url}, data_dir=str(data), retention=keep) as gateway,
        open_caller(gateway) as caller,
    ):
        tasks = [await caller.send(text) for text in ("hello marker-zq", "big", "two-artifacts")]
        await wait_until(lambda: count_stored(gateway)[1] == 0, 30, "all have left memory")
        tasks += [await caller.send("hello marker-zq")]
        records = [await caller.read_record(task["id"]) for task in tasks]
        archived, *stay, live = [str(record["sessionId"]) for record in records]
        asked = [["--owner", "owner"]]
        if what == "sessions":
            asked = [["--session", archived], ["--session", live]]
        copy_engine = Backup.copy_engine

        def forget_behind(made: Backup) -> None:
            copy_engine(made)
            for flags in asked:
                forgotten = run(tmp_path, "store", "forget", *flags, "--yes", "--data-dir", data)
                assert forgotten.returncode == ExitStatus.DONE, forgotten.stderr

        monkeypatch.setattr(Backup, "copy_engine", forget_behind)
        await run_backup(Settings(data_dir=data), backup)
    said = await run_restore(Settings(data_dir=restored), backup)
    # A frame in the archive is already erased in the copy.
    assert any(line.startswith("forgotten again: tombstone ") for line in said)
    left = set[str]() if what == "an owner" else {*stay}
    assert await count_sessions(restored) == len(left)
    async with reach_store(Settings(data_dir=restored)) as store:
        found = [(await store.log.load([name_task(task)]))[0].snapshot for task in tasks]
    assert [bool(one) for one in found] == [str(one["sessionId"]) in left for one in records]
    # A list may name a task whose frame is erased: the task is not found, and its row is removed by the next
    # comparison.
    stray = (await run_verify(Settings(data_dir=restored), rebuild=True)).lines
    assert {line.partition(":")[0] for line in stray} <= {"stray_row"}
    assert (await run_verify(Settings(data_dir=restored))).lines == []


def name_task(task: Answer) -> EntityRef:
    return EntityRef(EntityKind.TASK, task["id"])


async def count_sessions(data: Path) -> int:
    """Ended sessions, in memory and in the archive."""
    async with reach_store(Settings(data_dir=data)) as store:
        with open_names(data) as names:
            listed = store.exporter.source.list_sessions(ExportScope(), names)
            return sum([len(sessions) async for _, sessions in listed])
