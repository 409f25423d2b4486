"""``passerelle store export`` and ``import`` in use: next to a gateway, and into an empty folder."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING

import anyio.to_thread
import pytest

from passerelle.cli.exit_status import ExitStatus
from passerelle.cli.verify import run_verify
from passerelle.core.errors import InvalidInput
from passerelle.gateway.settings.model import Settings
from passerelle.store.exports.checked_export import check_export
from passerelle.store.exports.member_file import MemberFile
from tests.e2e.test_archive import leave_out
from tests.e2e.test_cli import COMMAND, run
from tests.support.processes import AGENT, Answer, Caller, count_stored, open_caller, run_gateway
from tests.support.scripted_peer import ScriptedPeer
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator
    from pathlib import Path

    from passerelle.demo.processes import GatewayProcess

pytestmark = pytest.mark.anyio
TEXTS = ("hello", "chunks 3", "big", "two-artifacts", "fail")
KILLS_S = (0.2, 0.5, 0.7)
"""Before anything is written, and during writing."""
LIMITED = """
import os, resource, sys
most_bytes = int(sys.argv[1])
resource.setrlimit(resource.RLIMIT_FSIZE, (most_bytes, most_bytes))
os.execv(sys.argv[2], sys.argv[2:])
"""
"""Runs a command whose files cannot grow beyond a number of bytes."""
PAUSE_S = 0.03
"""Interval between two tasks of a load: some end during each phase of an export, without slowing it down much."""


@asynccontextmanager
async def keep_working(caller: Caller) -> AsyncGenerator[list[Answer]]:
    """Sends messages in quick succession; yields the ended tasks."""
    ended: list[Answer] = []

    async def work() -> None:
        while True:
            for text in TEXTS:
                task = await caller.send(text)
                ended.append(task)
                await asyncio.sleep(PAUSE_S)

    working = asyncio.create_task(work())
    try:
        yield ended
    finally:
        working.cancel()
        with suppress(asyncio.CancelledError):
            await working


def export(folder: Path, file: Path, *flags: str) -> subprocess.CompletedProcess[str]:
    config = ("--config", folder / "passerelle.yaml", "--data-dir", folder / "data")
    return run(folder, "store", "export", file, *flags, *config)


def export_on_full_disk(folder: Path, file: Path, most_bytes: int) -> None:
    """An export whose files cannot grow beyond ``most_bytes``, as on a full disk."""
    config = ("--config", folder / "passerelle.yaml", "--data-dir", folder / "data")
    words = (COMMAND, "store", "export", file, "--all", *config)
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, str(most_bytes), *words],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == ExitStatus.CALLER, done.stderr
    assert f"file: {file}: File too large" in done.stderr
    assert not [one.name for one in file.parent.iterdir() if one.name.startswith(file.name)]


def has_left_some(gateway: GatewayProcess, count: int) -> bool:
    return count_stored(gateway)[1] < count - len(TEXTS)


def kill_export(folder: Path, file: Path, after_s: float) -> None:
    """An export that is killed, unless it finishes before."""
    config = ("--config", folder / "passerelle.yaml", "--data-dir", folder / "data")
    process = subprocess.Popen(
        [COMMAND, "store", "export", file, "--all", *config], stdout=subprocess.DEVNULL
    )
    with suppress(subprocess.TimeoutExpired):
        process.wait(after_s)
    process.send_signal(signal.SIGKILL)
    process.wait(10)


def is_whole(file: Path) -> bool:
    with file.open("rb") as opened:
        try:
            check_export(MemberFile(opened))
        except InvalidInput:
            return False
    return True


@pytest.mark.requirement("EXP-1", "EXP-2")
async def test_export_under_traffic_imports_elsewhere_with_the_same_evidence(
    tmp_path: Path,
) -> None:
    source, target, file = tmp_path / "source", tmp_path / "target", tmp_path / "away.psx"
    for folder in (source, target):
        folder.mkdir()
    async with ScriptedPeer(AGENT) as peer:
        keep = {"memory": "1s"}
        async with (
            run_gateway(
                source, {AGENT: peer.url}, data_dir=str(source / "data"), retention=keep
            ) as gateway,
            open_caller(gateway) as caller,
        ):
            async with keep_working(caller) as ended:
                await wait_until(
                    lambda: len(ended) > 20 and has_left_some(gateway, len(ended)),
                    30,
                    "some sessions have left memory",
                )
                before = len(ended)
                for number, after_s in enumerate(KILLS_S):
                    killed = tmp_path / f"killed-{number}.psx"
                    await anyio.to_thread.run_sync(kill_export, source, killed, after_s)
                    assert not killed.exists() or is_whole(killed)
                done = await anyio.to_thread.run_sync(partial(export, source, file, "--all"))
            assert done.returncode == ExitStatus.DONE, done.stderr
            assert not list(tmp_path.glob("away.psx.part"))
            assert file.stat().st_mode & 0o777 == 0o600
            tasks = ended[:before]
            read = [await caller.get_task(task["id"]) for task in tasks]
            records = [await caller.read_record(task["id"]) for task in tasks]
            shown = await export_evidence(caller, tasks[0])
        flags = ("--data-dir", target / "data")
        brought = await anyio.to_thread.run_sync(
            lambda: run(target, "store", "import", file, *flags)
        )
        assert brought.returncode == ExitStatus.DONE, brought.stderr
        again = await anyio.to_thread.run_sync(lambda: run(target, "store", "import", file, *flags))
        assert "imported: 0 sessions" in again.stdout
        report = await run_verify(Settings(data_dir=target / "data"), rebuild=True)
        assert report.lines == []
        assert report.sessions >= before
        async with (
            run_gateway(
                target, {AGENT: peer.url}, data_dir=str(target / "data"), retention=keep
            ) as gateway,
            open_caller(gateway) as caller,
        ):
            assert [await caller.get_task(task["id"]) for task in tasks] == read
            read_there = [await caller.read_record(task["id"]) for task in tasks]
            # The sessions in memory may differ between the two.
            assert leave_out(read_there) == leave_out(records)
            assert await export_evidence(caller, tasks[0]) == shown
            went_on = await caller.send("hello again", contextId=tasks[0]["contextId"])
            assert went_on["status"]["state"] == "TASK_STATE_COMPLETED"
        left = await anyio.to_thread.run_sync(lambda: run(target, "store", "import", file, *flags))
        assert left.returncode == ExitStatus.CALLER
        assert "exists here with other bytes" in left.stdout


async def export_evidence(caller: Caller, task: Answer) -> str:
    """The id of a bundle, which follows from its hash."""
    answer = await caller.http.post(
        "/v1/evidence", json={"taskId": task["id"]}, headers={"Idempotency-Key": "shown"}
    )
    assert answer.is_success, answer.text
    found: str = answer.json()["evidenceId"]
    return found


@pytest.mark.requirement("EXP-1")
async def test_export_on_a_full_disk_leaves_no_file_and_reports_it(tmp_path: Path) -> None:
    file = tmp_path / "away.psx"
    async with (
        ScriptedPeer(AGENT) as peer,
        run_gateway(tmp_path, {AGENT: peer.url}, data_dir=str(tmp_path / "data")) as gateway,
        open_caller(gateway) as caller,
    ):
        for text in TEXTS:
            await caller.send(text)
        done = await anyio.to_thread.run_sync(partial(export, tmp_path, file, "--all"))
        assert done.returncode == ExitStatus.DONE, done.stderr
        whole = file.stat().st_size
        for most_bytes in (1024, whole // 2, whole - 1):
            full = partial(export_on_full_disk, tmp_path, tmp_path / "full.psx", most_bytes)
            await anyio.to_thread.run_sync(full)


def test_flags_for_nothing_or_too_much_are_refused(tmp_path: Path) -> None:
    for flags in ((), ("--all", "--owner", "ada"), ("--session", "x", "--since", "24h")):
        done = run(tmp_path, "store", "export", tmp_path / "away.psx", *flags)
        assert done.returncode == ExitStatus.CALLER, flags
        assert "passerelle: error: " in done.stderr
    assert not (tmp_path / "away.psx").exists()
