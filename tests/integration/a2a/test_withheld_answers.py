"""Answers that the gateway does not pass on: the caller of every form reads a failed task, and why."""

from __future__ import annotations

import asyncio
from typing import Any, Final, cast

import pytest

from passerelle.a2a_mapping.rpc import Method
from passerelle.core.wire.json import JsonObject
from passerelle.delegation.runs.peer_profile import PeerTerms
from passerelle.delegation.runs.volume import OutputLimits
from passerelle.permission_bridge.hook_terms import HookTerms
from passerelle.permission_bridge.rules import make_policy
from tests.integration.a2a.rig import PATIENCE, Rig
from tests.integration.a2a.speakers import Speaker
from tests.integration.a2a.test_bindings_agree import speakers
from tests.support.scripted_tasks import Turn
from tests.support.waiting import wait_until

__all__ = ["speakers"]

pytestmark = pytest.mark.anyio

SECRET: Final = "the number of the safe"
HERE: Final = "tests.integration.a2a.test_withheld_answers"


def withhold(given: JsonObject) -> JsonObject:
    return {"verdict": "deny", "reason": "it stays here"} if SECRET in str(given) else {}


def read_end(answer: object) -> tuple[str, str]:
    """State and text of the last status of an answer, or of a stream."""
    last = cast("dict[str, Any]", answer[-1] if isinstance(answer, list) else answer)
    status = (last.get("task") or last["statusUpdate"])["status"]
    return status["state"], status["message"]["parts"][0]["text"]


@pytest.mark.requirement("EXT-3", "PRS-4")
@pytest.mark.parametrize("method", [Method.SEND_MESSAGE, Method.SEND_STREAMING_MESSAGE])
@pytest.mark.parametrize("word", ["echo", "message", "ask", "fail", "done"])
async def test_withheld_answer_is_a_failed_task_with_its_reason_in_every_form(
    rig: Rig, speakers: dict[str, Speaker], method: Method, word: str
) -> None:
    hook = HookTerms("guard", frozenset({"before_deliver"}), call=f"{HERE}:withhold")
    rig.rules[0] = make_policy(hooks=(hook,))
    for name, speaker in speakers.items():
        answer = await speaker.call(method, rig.message(f"{word} {SECRET}"))
        said = ("TASK_STATE_FAILED", "the answer is withheld: it stays here")
        assert read_end(answer) == said, name
    assert rig.counted() == len(speakers), "nothing was sent twice"


@pytest.mark.requirement("A2A-9")
@pytest.mark.parametrize("method", [Method.SEND_MESSAGE, Method.SEND_STREAMING_MESSAGE])
async def test_answer_over_the_output_limit_is_a_failed_task_in_every_form(
    rig: Rig, speakers: dict[str, Speaker], method: Method
) -> None:
    rig.terms["echo"] = PeerTerms(PATIENCE, limits=OutputLimits(100, 100))
    for name, speaker in speakers.items():
        state, text = read_end(await speaker.call(method, rig.message("echo " + "x" * 200)))
        assert state == "TASK_STATE_FAILED", name
        assert text.startswith("agent 'echo' sent too much output: "), name
    assert rig.counted() == len(speakers), "nothing was sent twice"


async def speak_and_work_on(turn: Turn) -> None:
    said: JsonObject = {"messageId": "m", "role": "ROLE_AGENT", "parts": [{"text": SECRET}]}
    task = turn.make_task(turn)
    task.record["status"] = {"state": "TASK_STATE_WORKING", "message": said}
    task.show()
    await asyncio.Event().wait()


@pytest.mark.requirement("PRS-4")
async def test_agent_whose_first_frame_is_withheld_is_told_to_stop(rig: Rig) -> None:
    hook = HookTerms("guard", frozenset({"before_deliver"}), call=f"{HERE}:withhold")
    rig.rules[0] = make_policy(hooks=(hook,))
    rig.peer.next(speak_and_work_on)
    frames = await rig.collect("SendStreamingMessage", rig.message("go"))
    status = frames[-1].result["task"]["status"]
    assert status["state"] == "TASK_STATE_FAILED"
    await wait_until(lambda: rig.peer.count("CancelTask") == 1, 10, "the agent is told to stop")
