"""An agent that completes without the approval that it needed: it cannot be answered, and a warning is recorded."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final, cast

import pytest

from passerelle.core.payloads.runtime import WarningRaised
from passerelle.core.task.status import Status
from passerelle.core.wire.json import JsonObject
from tests.support.asking import ask_leave
from tests.support.harness import Harness
from tests.support.scripted_tasks import Turn

pytestmark = pytest.mark.anyio

RECORDED: Final = cast(
    "JsonObject",
    json.loads(
        (Path(__file__).parents[2] / "vectors" / "agent-framework-silence.json").read_text("utf-8")
    ),
)
"""The response of a Microsoft Agent Framework agent, behind its own A2A executor, to a message whose tool needs
approval: as recorded on the wire.
"""


async def warnings_of(harness: Harness, session: str) -> list[str]:
    """The warning codes of a session."""
    entries = await harness.entries(session)
    found = [json.loads(entry.data) for entry in entries]
    return [one["payload"]["code"] for one in found if one["type"] == WarningRaised.type]


async def test_framework_that_drops_approvals_causes_a_warning(harness: Harness) -> None:
    async def answer_as_recorded(turn: Turn) -> None:
        task = await turn.open()
        recorded = cast("JsonObject", RECORDED["task"])
        kept = {name: task.record[name] for name in ("id", "contextId", "history")}
        task.record.clear()
        task.record.update({**recorded, **kept})
        task.show()

    harness.peer.next(answer_as_recorded)
    accepted, _ = await harness.talk("delete the old rows")
    assert (await harness.record(accepted)).status is Status.COMPLETED
    assert await warnings_of(harness, accepted.session_id) == ["peer_lost_approval"]


@pytest.mark.parametrize("goes_on", [False, True])
async def test_agent_that_completes_with_an_open_approval_causes_a_warning(
    harness: Harness, *, goes_on: bool
) -> None:
    async def lose(turn: Turn) -> None:
        await ask_leave()(turn)
        if goes_on:
            await turn.status("WORKING")
        await turn.artifact("done, or so it says")
        await turn.status("COMPLETED")

    harness.peer.next(lose)
    harness.peer.hold()
    accepted = await harness.send("go", wait="stream")
    harness.peer.release(2)
    await harness.until(accepted, Status.WAITING_INPUT)
    harness.peer.release_all()
    await harness.until(accepted, Status.COMPLETED)
    assert await warnings_of(harness, accepted.session_id) == ["peer_lost_approval"]


async def test_answered_approval_and_request_for_input_cause_no_warning(harness: Harness) -> None:
    harness.peer.next(ask_leave())
    accepted, _ = await harness.talk("go")
    await harness.respond(await harness.question(accepted), option_id="leave")
    await harness.until(accepted, Status.COMPLETED)
    assert await warnings_of(harness, accepted.session_id) == []
    harness.peer.hold()
    accepted = await harness.send("auth-resume", wait="stream")
    harness.peer.release_all()
    await harness.until(accepted, Status.COMPLETED)
    assert await warnings_of(harness, accepted.session_id) == []
