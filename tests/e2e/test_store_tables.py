"""``passerelle store export --format parquet`` in use: next to a gateway, killed, and with bad options."""

from __future__ import annotations

import signal
import subprocess
from typing import TYPE_CHECKING

import anyio.to_thread
import pytest

from passerelle.cli.exit_status import ExitStatus
from tests.e2e.test_cli import COMMAND, run
from tests.e2e.test_store_export import TEXTS, export, has_left_some, keep_working
from tests.support.processes import AGENT, open_caller, run_gateway
from tests.support.scripted_peer import ScriptedPeer
from tests.support.tables import check_whole, read_tables
from tests.support.waiting import block_until, wait_until

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.anyio
PARQUET = ("--format", "parquet")
KILLS_S = (0.0, 0.02, 0.1)
"""After the first file of an export."""


def kill_export(folder: Path, target: Path, after_s: float) -> None:
    """An export that is killed during writing, unless it finishes before."""
    config = ("--config", folder / "passerelle.yaml", "--data-dir", folder / "data")
    process = subprocess.Popen(
        [COMMAND, "store", "export", target, *PARQUET, "--all", *config], stdout=subprocess.DEVNULL
    )
    block_until(
        lambda: any(target.glob("*")) or process.poll() is not None, 60, "an export that writes"
    )
    try:
        process.wait(after_s)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGKILL)
        process.wait(10)


def write_tables(folder: Path, target: Path) -> subprocess.CompletedProcess[str]:
    return export(folder, target, *PARQUET, "--all")


def is_whole_or_says_not(folder: Path) -> bool:
    if (folder / "manifest.sha256").exists():
        check_whole(folder)
        return True
    return any(one.suffix == ".part" for one in folder.iterdir())


@pytest.mark.requirement("EXP-4", "EXP-5")
async def test_tables_are_exported_under_traffic_and_a_killed_export_is_incomplete(
    tmp_path: Path,
) -> None:
    source, target = tmp_path / "source", tmp_path / "tables"
    source.mkdir()
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
                    60,
                    "some sessions have left memory",
                )
                before = {task["id"]: task["status"]["state"] for task in ended}
                done = await anyio.to_thread.run_sync(write_tables, source, target)
            for number, after_s in enumerate(KILLS_S):
                killed = tmp_path / f"killed-{number}"
                await anyio.to_thread.run_sync(kill_export, source, killed, after_s)
                assert is_whole_or_says_not(killed)
            stopped = tmp_path / "killed-0"
            if not (stopped / "manifest.sha256").exists():
                again = await anyio.to_thread.run_sync(write_tables, source, stopped)
                assert again.returncode == ExitStatus.DONE, again.stderr
            check_whole(stopped)
    assert done.returncode == ExitStatus.DONE, done.stderr
    assert done.stdout.startswith("exported: ")
    tables = read_tables(target)
    reported = {row["a2a_task_id"]: row["status"] for row in tables["tasks"]}
    assert len(reported) == len(tables["tasks"])
    for name, state in before.items():
        assert reported[name] == state.removeprefix("TASK_STATE_").lower()
    assert {row["archived"] for row in tables["tasks"]} == {True, False}
    assert {*before.values()} >= {"TASK_STATE_COMPLETED", "TASK_STATE_FAILED"}
    assert len(before) >= len(TEXTS)


def test_bad_options_are_refused_in_one_line(tmp_path: Path) -> None:
    for flags, said in (
        (("--format", "csv", "--all"), "'csv' is not one of 'sessions', 'parquet'"),
        (PARQUET, "give --all, --owner, --session, --task, --since or --until"),
        ((*PARQUET, "--all", "--data-dir", "nothing"), "there is no store in nothing"),
    ):
        done = run(tmp_path, "store", "export", tmp_path / "tables", *flags)
        assert done.returncode == ExitStatus.CALLER, flags
        assert said in done.stderr
    assert not (tmp_path / "tables").exists()
