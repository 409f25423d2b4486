"""A gateway that is killed while its caller chooses an artifact continues with the answer."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, cast

import httpx
import pytest

from passerelle.a2a_mapping.extensions import NAMED
from tests.support.processes import AGENT, Answer, Caller, run_gateway
from tests.support.scripted_peer import ScriptedPeer
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from pathlib import Path

    from passerelle.core.wire.json import JsonObject

pytestmark = pytest.mark.anyio
ASKED: Final = "TASK_STATE_INPUT_REQUIRED"


@pytest.mark.requirement("LT-19", "I2")
async def test_answer_is_used_after_kills(tmp_path: Path) -> None:
    async with ScriptedPeer(AGENT) as peer, run_gateway(tmp_path, {AGENT: peer.url}) as gateway:
        headers = {**gateway.authorization, "A2A-Version": "1.0"}
        async with httpx.AsyncClient(base_url=gateway.url, headers=headers, timeout=30) as http:
            caller = Caller(http)

            async def send(text: str, **members: object) -> Answer:
                params = cast("Answer", caller.write(text))
                params["message"] |= members
                answer = await caller.call("SendMessage", cast("JsonObject", params))
                return cast("Answer", answer["task"])

            peer.hold()
            drawing = [asyncio.create_task(send(f"report {one}", contextId="c")) for one in "ab"]
            await wait_until(lambda: len(peer.messages) == len(drawing), 20, "both are there")
            peer.release_all()
            for one in drawing:
                assert (await one)["status"]["state"] == "TASK_STATE_COMPLETED"
            asked = await send("echo red", contextId="c", metadata={NAMED: ["result"]})
            assert asked["status"]["state"] == ASKED
            gateway.kill()
            await gateway.start()
            again = await send("neither", taskId=asked["id"])
            assert again["status"]["state"] == ASKED
            shown = await caller.call("GetTask", {"id": asked["id"]})
            assert shown["status"] == again["status"]
            gateway.kill()
            await gateway.start()
            done = await send("2", taskId=asked["id"])
            assert done["status"]["state"] == "TASK_STATE_COMPLETED"
            sent = [one for one in peer.messages if "echo red" in str(one)]
            assert len(sent) == 1
            assert len(cast("list[str]", sent[0]["referenceTaskIds"])) == 1
