"""Examples with agents of other frameworks, each in a separate environment: pages as written."""

from __future__ import annotations

import re
from pathlib import Path

import httpx
import pytest

from tests.examples.stage import EXAMPLES, open_example
from tests.interop.environments import ADK, LANGGRAPH, require

pytestmark = pytest.mark.timeout(600)


@pytest.mark.parametrize("home", [ADK, LANGGRAPH], ids=lambda home: home.name)
def test_agent_of_another_framework_requests_approval_and_follows_it(
    home: Path, tmp_path: Path
) -> None:
    require(home)
    name = f"{home.name}-agent"
    with open_example(name, tmp_path) as example:
        (example.folder / ".venv").symlink_to(home / ".venv")
        example.play()
        tasks = example.run("passerelle tasks list -o name").split()
        example.run(f"passerelle tasks watch {tasks[0]}")
        closed = example.run("passerelle approvals list --state closed")
        assert sorted(re.findall(r"\b(?:allowed|rejected)\b", closed)) == ["allowed", "rejected"]
        token = (example.folder / "state" / "owner-token").read_text("ascii").strip()
        answer = httpx.get(
            f"{example.url('8080')}/agents/operator/tasks?includeArtifacts=true",
            headers={"Authorization": f"Bearer {token}", "A2A-Version": "1.0"},
            trust_env=False,
        )
        assert "mail is restarted" in answer.text
        assert "disk is restarted" not in answer.text


@pytest.mark.parametrize("home", [ADK, LANGGRAPH], ids=lambda home: home.name)
def test_page_installs_the_packages_of_the_test(home: Path) -> None:
    shown = EXAMPLES / f"{home.name}-agent" / "requirements.txt"
    assert shown.read_text("utf-8") == (home / "requirements.in").read_text("utf-8")
