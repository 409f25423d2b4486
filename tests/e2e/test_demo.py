"""The demo in the foreground, as a new user runs it.

``make demo`` runs the story itself.
"""

from __future__ import annotations

import itertools
import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from typing import cast

import httpx
import pytest

from passerelle.demo import story
from passerelle.demo.checks import CheckFailed, Checks, wait_for
from passerelle.demo.stage import Stage
from tests.support.processes import Answer
from tests.support.waiting import block_until


def test_foreground_demo_prints_a_curl_line_that_works_and_leaves_nothing(tmp_path: Path) -> None:
    said = tmp_path / "said"
    environ = {**os.environ, "TMPDIR": str(tmp_path)}
    with (
        said.open("wb") as out,
        subprocess.Popen(
            [sys.executable, "-m", "passerelle", "demo"], stdout=out, env=environ, cwd=tmp_path
        ) as process,
    ):
        try:
            block_until(lambda: "Ctrl-C" in said.read_text("utf-8"), 30, "the demo is ready")
            task = run_curl(find_command(said.read_text("utf-8")))
            assert task["artifacts"][0]["parts"] == [{"text": "hello"}]
            assert len(list(tmp_path.glob("passerelle-demo-*"))) == 1
            children = find_children(process.pid)
            assert len(children) == 4
            process.send_signal(signal.SIGINT)
            assert process.wait(15) == 0
        finally:
            process.kill()
    assert not [pid for pid in children if Path(f"/proc/{pid}").exists()]
    assert not list(tmp_path.glob("passerelle-demo-*"))


def find_command(said: str) -> str:
    found = re.search(r"^  curl .*?-d '[^']*'$", said, re.DOTALL | re.MULTILINE)
    assert found is not None
    return found[0]


def run_curl(command: str) -> Answer:
    """Sends the request of the printed line; curl need not be installed."""
    words = shlex.split(command.replace("\\\n", " "))
    named = list(itertools.pairwise(words))
    headers = dict(given.split(": ", 1) for flag, given in named if flag == "-H")
    (body,) = [given for flag, given in named if flag == "-d"]
    assert words[:2] == ["curl", "-s"]
    answer = httpx.post(words[2], content=body, headers=headers, timeout=20)
    return cast("Answer", answer.json()["result"]["task"])


def find_children(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/task/{pid}/children").read_text("ascii").split()


@pytest.mark.anyio
async def test_failed_story_reports_its_step_and_keeps_its_data(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async def break_down(stage: Stage) -> None:
        stage.checks.check("the gateway is there", stage.gateway.url)
        stage.checks.equal("two and two", 5, 4)

    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    monkeypatch.setattr(story, "PARTS", (break_down,))
    assert await story.run_demo(once=True) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[-2] == "demo: failed after 1 checks: two and two; seen: '5, wanted 4'"
    (kept,) = tmp_path.glob("passerelle-demo-*")
    assert lines[-1] == f"demo: its data and logs are kept in {kept}"
    assert (kept / "data" / "owner-token").exists()


@pytest.mark.anyio
async def test_timeout_of_the_story_reports_the_last_value() -> None:
    with pytest.raises(CheckFailed, match=r"a miracle: not within 0 s; last seen: \[\]"):
        await wait_for("a miracle", list, within_s=0.05)


def test_failed_check_is_not_counted() -> None:
    checks = Checks()
    with pytest.raises(CheckFailed, match="it rains"):
        checks.check("it rains", holds=False)
    assert checks.passed == 0
