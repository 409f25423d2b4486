"""End-to-end jobs of a new user, with nothing but the pages.

Two are here; the third, two instances behind a proxy of which one is killed, is the whole page of an example, in
``test_two_instances``. Settings and commands are those of the pages; a test writes ``instead`` what a reader would:
names of their own agents and folders.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import pytest

from tests.examples.devtools import OpenPage, open_page
from tests.examples.stage import open_together

OPERATION: Final = "docs/operate/README.md"
WATCHING: Final = "docs/operate/watching.md"
_CALL: Final = "passerelle call deployer"
_TASKS: Final = "PASSERELLE_TOKEN=$(key shop) passerelle tasks list"
_DAY: Final = "/backups/2026-01-31"

pytestmark = pytest.mark.timeout(600)  # some twenty commands, each of which starts a process


def press(page: OpenPage, button: str) -> None:
    """Presses the one button of the page with this text."""
    page.evaluate(
        "(([one, ...more]) => { if (more.length) throw Error('which?'); one.click(); })"
        f"([...document.querySelectorAll('button')].filter((b) => b.textContent === '{button}'))"
    )


def read_metric(shown: str, name: str) -> float:
    """The value of a metric with its labels in the output of the page's command."""
    (value,) = re.findall(rf"^{re.escape(name)} (\S+)$", shown, re.MULTILINE)
    return float(value)


def test_users_own_agent_requests_approval_on_the_users_own_page(tmp_path: Path) -> None:
    with open_together(("asking-agent", "browser-page"), tmp_path) as example:
        example.take("python agent.py")
        example.take("--demo-agents")
        example.take("python serve.py")
        with open_page(example.url("8090"), tmp_path) as page:
            page.await_text("live")
            example.take(_CALL)
            page.await_text("deploy(version: 1.4)")
            press(page, "Deploy")
            page.await_no_text("1.4")
            example.take("passerelle tasks watch")
            example.take(_CALL, {"1.4": "1.5"})
            page.await_text("deploy(version: 1.5)")
            press(page, "Do not deploy")
            page.await_no_text("1.5")
        closed = example.run("passerelle approvals list --state closed")
        assert sorted(re.findall(r"\b(?:allowed|rejected)\b", closed)) == ["allowed", "rejected"]


def test_a_team_has_keys_rules_two_approvers_webhooks_metrics_and_a_backup(tmp_path: Path) -> None:
    names, pages = ("webhook-receiver", "payments-policy"), (WATCHING, OPERATION)
    with open_together(names, tmp_path, pages) as example:
        example.take("demo.peers.payments")
        example.take("mkdir -p keys && passerelle signing-key")
        example.take("for name in shop ada bob")
        example.take("--demo-agents")
        example.take("python receive.py")
        example.take("node receive.mjs")
        # The payments of the shop go to both receivers; the page has the owner's call of another agent.
        own = {
            "agents/echo": "agents/payments",
            "$(cat state/owner-token)": "$(key shop)",
            "hello": "12 EUR to the baker",
        }
        example.take("ask m-1", own)
        for receiver in ("python", "node"):
            example.await_said(receiver, r"^verified: .*TASK_STATE_COMPLETED")
        # Rules and approvers: small bills, large ones, none; the requester is refused, and two have to agree.
        example.play_rest("payments-policy", "passerelle serve")
        metrics = example.take("/metrics")
        assert read_metric(metrics, "passerelle_open_approvals") == 0
        assert read_metric(metrics, 'passerelle_approval_decision_seconds_count{risk="high"}') == 1
        before = example.run(_TASKS)
        assert before.count("completed") == 5
        copied = {_DAY: "backups/today", "./restored": "restored"}
        assert "0 problems" in example.take("store backup", copied)
        example.take("--demo-agents", {"serve": "serve --data-dir restored"})
        assert example.run(_TASKS) == before
        example.take("ask m-1", {**own, "m-1": "m-3", "m-2": "m-4"})
        assert example.run(_TASKS).count("completed") == 7
