"""``passerelle sessions history``: a conversation on a screen, and as lines of a file (MK-33)."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from passerelle.cli.exit_status import ExitStatus
from tests.support.command import run_command
from tests.support.processes import AGENT

if TYPE_CHECKING:
    from passerelle.demo.processes import GatewayProcess
    from tests.support.scripted_peer import ScriptedPeer

pytestmark = pytest.mark.anyio


@pytest.mark.requirement("MK-33")
async def test_a_conversation_is_shown_and_written_as_lines(
    gateway: GatewayProcess, peer: ScriptedPeer
) -> None:
    del peer
    made = await run_command(gateway, "call", AGENT, "echo two\x1b[31m boats\nin red", "--json")
    task = await run_command(gateway, "tasks", "show", str(made.answer["task"]["id"]), "--json")
    thread = str(task.answer["threadId"])
    shown = await run_command(gateway, "sessions", "history", thread)
    assert [line.split("  ")[1] for line in shown.lines] == ["user", "assistant"]
    assert all("in red" in line and "\x1b" not in line for line in shown.lines)
    reported = await run_command(gateway, "sessions", "history", thread, "--json")
    lines = [json.loads(line) for line in reported.out.splitlines()]
    assert [each["role"] for each in lines] == ["user", "assistant"]
    assert all("\x1b[31m boats\nin red" in each["text"] for each in lines)
    session = str(task.answer["sessionId"])
    assert (await run_command(gateway, "sessions", "history", session)).lines == shown.lines
    opened = await run_command(gateway, "sessions", "open", "Two boats", "--json")
    empty = str(opened.answer["session"]["sessionId"])
    nothing = await run_command(gateway, "sessions", "history", empty)
    assert (nothing.status, "it has no thread yet" in nothing.err) == (ExitStatus.CALLER, True)
    absent = await run_command(gateway, "sessions", "history", "th_nothing")
    assert absent.status == ExitStatus.NOT_FOUND
    assert "th_nothing" in absent.err
