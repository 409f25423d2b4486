"""``passerelle evidence`` in use: exported by one person, checked by another with a single Python file."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from passerelle.cli.exit_status import ExitStatus
from tests.e2e.test_approvals import ask
from tests.support.command import run_command
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from passerelle.demo.processes import GatewayProcess
    from tests.support.processes import Caller
    from tests.support.scripted_peer import ScriptedPeer

COMMAND: Final = Path(sys.executable).with_name("passerelle")
HASH: Final = Path(__file__).parents[2] / "docs" / "protocol" / "check_evidence.sha256"
pytestmark = [pytest.mark.anyio, pytest.mark.requirement("CMD-20", "CMD-26")]


def call(folder: Path, *words: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        words,
        cwd=folder,
        env={},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def check_alone(folder: Path, file: Path, *flags: str) -> subprocess.CompletedProcess[str]:
    return call(folder, sys.executable, "-I", "-S", "check_evidence.py", file, *flags)


async def test_an_approval_is_exported_and_checked_without_the_gateway(
    gateway: GatewayProcess, peer: ScriptedPeer, caller: Caller, tmp_path: Path
) -> None:
    await run_command(gateway, "devices", "add-this", "laptop")
    view = await ask(gateway, caller, "critical")
    action, task = str(view["actionId"]), str(view["taskId"])
    allowed = await run_command(
        gateway, "approvals", "allow", action, "--digest", str(view["digest"])
    )
    assert allowed.status == 0

    async def is_over() -> bool:
        shown = await run_command(gateway, "tasks", "show", task, "--json")
        return bool(shown.answer["status"] == "completed")

    await wait_until(is_over, 20, "the task is completed")
    file = tmp_path / "task.jsonl.gz"
    reported = await run_command(gateway, "evidence", "export", task, "--out", str(file))
    assert reported.status == 0, reported.err
    assert reported.out.splitlines()[0] == f"{file}  {file.stat().st_size} bytes"
    again = await run_command(gateway, "evidence", "export", task, "-o", str(file), "--json")
    assert (again.status, again.answer["repeated"]) == (0, True)
    key = (await run_command(gateway, "evidence", "key")).out.removeprefix("fingerprint: ").strip()
    program = call(tmp_path, COMMAND, "evidence", "checker")
    (tmp_path / "check_evidence.py").write_text(program.stdout, encoding="utf-8")
    hashed = hashlib.sha256((tmp_path / "check_evidence.py").read_bytes()).hexdigest()
    assert HASH.read_text(encoding="ascii") == f"{hashed}  check_evidence.py\n"
    alone = check_alone(tmp_path, file, f"--trust={key}")
    assert (alone.returncode, alone.stderr) == (0, "")
    *lines, last = alone.stdout.splitlines()
    assert last == f"evidence: proven, signed by the gateway key {key}, which you trust"
    (said,) = [line for line in lines if f"has allowed question {action}" in line]
    assert f"bound to digest {view['digest']}; signed by device dev_" in said
    same = call(tmp_path, COMMAND, "evidence", "verify", file, f"--trust={key}")
    assert (same.returncode, same.stdout) == (0, alone.stdout)
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    changed = check_alone(tmp_path, file, f"--trust={key}")
    assert changed.returncode == ExitStatus.REMOTE
    assert changed.stdout.splitlines() == [
        "fault: container: its bytes are not those of the SHA-256 in its header",
        "evidence: not valid, 1 fault",
    ]
    kept = await run_command(gateway, "evidence", "export", task, "--out", str(file))
    assert kept.status == ExitStatus.CALLER
    assert "exists already with other content" in kept.err
    assert file.read_bytes() == content


async def test_replay_and_review_are_exported_with_it(
    gateway: GatewayProcess, peer: ScriptedPeer, caller: Caller, tmp_path: Path
) -> None:
    task = (await caller.send("hello"))["id"]
    for kind, word in (("replay", "replay of task"), ("review", "review of task")):
        file = tmp_path / f"{kind}.jsonl.gz"
        reported = await run_command(gateway, "evidence", kind, task, "--out", str(file))
        assert (reported.status, word in reported.out) == (0, True)
    wrong = await run_command(gateway, "evidence", "export", "act_1")
    assert (wrong.status, "is not an id of a session" in wrong.err) == (ExitStatus.CALLER, True)
