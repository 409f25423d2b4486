"""Who may serve which name, which frames a link may send, and what ends the serving."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any, cast

import orjson
import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.typing import Subprotocol

from passerelle.gateway.reload import apply_settings
from passerelle.protocol.frames import SUBPROTOCOL
from tests.integration.callers.rig import Instance, describe
from tests.integration.reverse.rig import CLIENTS, NAME, Caller, Rig, find_url, read_texts
from tests.integration.reverse.test_drops import await_links, find_served
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio

Frame = dict[str, Any]
CARD: Frame = {"name": "Raw", "description": "Raw.", "version": "1", "skills": []}


class Raw:
    """A link that can send any frame."""

    def __init__(self, socket: ClientConnection) -> None:
        self._socket = socket
        self._received: list[Frame] = []
        self.welcome: Frame = {}

    async def send_frames(self, *frames: Frame) -> None:
        await self._socket.send("\n".join(orjson.dumps(frame).decode() for frame in frames))

    async def receive(self, kind: str) -> Frame:
        """Returns the next frame of this type; skips others."""
        while (frame := await self.receive_any())["t"] != kind:
            pass
        return frame

    async def receive_any(self) -> Frame:
        """Returns the next frame."""
        async with asyncio.timeout(15):
            while not self._received:
                lines = str(await self._socket.recv()).split("\n")
                self._received += [cast("Frame", orjson.loads(line)) for line in lines]
        return self._received.pop(0)

    async def receive_close(self) -> int:
        async with asyncio.timeout(15):
            await self._socket.wait_closed()
        return self._socket.close_code or 0


@asynccontextmanager
async def open_raw(
    instance: Instance, who: str = NAME, device: str = "raw", **members: object
) -> AsyncGenerator[Raw]:
    async with connect(
        find_url(instance), subprotocols=[Subprotocol(SUBPROTOCOL)], proxy=None, compression=None
    ) as socket:
        raw = Raw(socket)
        hello = {"t": "hello", "v": 1, "token": f"{who}-key", "device": device, "role": "agent"}
        await raw.send_frames({**hello, **members})
        raw.welcome = await raw.receive("welcome")
        yield raw


def register(agent: str = NAME, **members: object) -> Frame:
    return {"t": "reg", "agent": agent, "card": CARD, "max": 2, **members}


def complete(call: Frame, text: str) -> Frame:
    """Returns the answer of an agent that completes at once."""
    task = {
        "id": f"remote-{call['id']}",
        "contextId": call["d"]["message"]["contextId"],
        "status": {"state": "TASK_STATE_COMPLETED"},
        "artifacts": [{"artifactId": "a", "parts": [{"text": text}]}],
    }
    return {"t": "ok", "id": call["id"], "d": {"task": task}}


async def test_a_link_gets_calls_and_its_answers_are_delivered(rig: Rig) -> None:
    instance = await rig.start()
    async with open_raw(instance) as raw:
        await raw.send_frames(register())
        registered = await raw.receive("reg")
        assert registered == {
            "t": "reg", "ok": True, "agent": NAME, "url": f"/agents/{NAME}", "gen": 1
        }  # fmt: skip
        sending = asyncio.create_task(Caller(instance).send("hello"))
        call = await raw.receive("rpc")
        assert (call["to"], call["m"], call["hdr"]["A2A-Version"]) == (
            NAME,
            "a2a:SendMessage",
            "1.0",
        )
        assert call["dl"] > 0
        await raw.send_frames(complete(call, "done"))
        assert read_texts(await sending) == ["done"]


async def test_a_late_answer_of_an_older_link_is_ignored(rig: Rig) -> None:
    instance = await rig.start()
    caller = Caller(instance)
    async with open_raw(instance, device="older") as older:
        await older.send_frames(register())
        await older.receive("reg")
        sending = asyncio.create_task(caller.send("hello"))
        call = await older.receive("rpc")
        async with open_raw(instance, device="newer") as newer:
            await newer.send_frames(register())
            lost = await older.receive("unreg")
            assert (lost["agent"], lost["code"]) == (NAME, "superseded")
            await older.send_frames(complete(call, "late"))
            looking = await newer.receive("rpc")
            assert looking["m"] == "a2a:ListTasks", "the agent is asked before anything is sent"
            found = complete(call, "found")["d"]["task"]
            found["history"] = [call["d"]["message"]]
            await newer.send_frames({"t": "ok", "id": looking["id"], "d": {"tasks": [found]}})
            assert read_texts(await sending) == ["found"]


async def test_a_flooding_link_is_refused_and_then_closed(rig: Rig) -> None:
    instance = await rig.start()
    caller = Caller(instance)
    async with open_raw(instance) as raw:
        await raw.send_frames(register())
        await raw.receive("reg")
        streaming = asyncio.create_task(
            caller.collect("SendStreamingMessage", caller.write("hello"))
        )
        call = await raw.receive("rpc")
        item: Frame = {"t": "item", "id": call["id"], "d": {"statusUpdate": {}}}
        await raw.send_frames(*({**item, "n": number} for number in range(1, 16)))
        for first in range(16, call["win"] + 20, 15):
            await raw.send_frames(*({**item, "n": number} for number in range(first, first + 15)))
        assert (await raw.receive("error"))["code"] == "window"
        forged = {"t": "welcome"}
        for _ in range(8):
            await raw.send_frames(forged)
        assert await raw.receive_close() == 4514
        streaming.cancel()


@pytest.mark.parametrize(
    ("frame", "code"),
    [
        (register("echo"), "forbidden"),
        (register("nobody"), "forbidden"),
        (register(card={"description": "no name"}), "invalid_agent_response"),
        (register(card={"name": "x", "capabilities": {"streaming": "yes"}}), "invalid_agent_response"),
    ],
)  # fmt: skip
async def test_an_invalid_registration_is_refused(rig: Rig, frame: Frame, code: str) -> None:
    instance = await rig.start()
    async with open_raw(instance) as raw:
        await raw.send_frames(frame)
        refused = await raw.receive("error")
        assert (refused["code"], refused["of"]) == (code, "reg")
    assert find_served(instance) == []


async def test_a_refused_card_update_keeps_the_registration_until_the_link_ends(
    rig: Rig,
) -> None:
    """Once the link dropped its name and the gateway did not, and so served it over a closed socket."""
    instance = await rig.start()
    async with open_raw(instance, device="older") as raw:
        await raw.send_frames(register())
        await raw.receive("reg")
        await raw.send_frames(register(card={"description": "no name"}))
        assert (await raw.receive("error"))["code"] == "invalid_agent_response"
        sending = asyncio.create_task(Caller(instance).send("hello"))
        call = await raw.receive("rpc")
        await raw.send_frames(complete(call, "done"))
        assert read_texts(await sending) == ["done"]
        # Refused updates do not count; a valid one afterwards is accepted.
        await raw.send_frames(register(card={"description": "no name"}), register(max=3))
        assert (await raw.receive("reg"))["agent"] == NAME
    await await_links(instance, 0)
    async with open_raw(instance, device="newer") as raw:
        await raw.send_frames(register())
        assert (await raw.receive("reg"))["agent"] == NAME
        await raw.send_frames(
            register(card={"description": "no name"}), {"t": "unreg", "agent": NAME}
        )
        assert (await raw.receive("unreg"))["code"] == "asked"
        await await_links(instance, 0)
        await raw.send_frames(register(), {"t": "unreg", "agent": NAME})
        assert [(await raw.receive_any())["t"], (await raw.receive_any())["t"]] == ["reg", "unreg"]
        await await_links(instance, 0)


async def test_frames_of_agents_are_refused_from_other_roles(rig: Rig) -> None:
    instance = await rig.start()
    async with open_raw(instance, role="ui") as raw:
        await raw.send_frames(register(), {"t": "ok", "id": "g1", "d": {}})
        assert (await raw.receive("error"))["code"] == "forbidden_frame"
        assert (await raw.receive("error"))["code"] == "forbidden_frame"


async def test_open_calls_do_not_exceed_the_agents_maximum(rig: Rig) -> None:
    instance = await rig.start()
    caller = Caller(instance)
    async with open_raw(instance) as raw:
        await raw.send_frames(register(max=1))
        await raw.receive("reg")
        first, second = (asyncio.create_task(caller.send(text)) for text in ("one", "two"))
        call = await raw.receive("rpc")
        (served,) = find_served(instance)
        await wait_until(lambda: served.working == 1, 15, "one call is open")
        await raw.send_frames(complete(call, "done"))
        await raw.send_frames(complete(await raw.receive("rpc"), "done"))
        assert [read_texts(one) for one in await asyncio.gather(first, second)] == [["done"]] * 2


async def test_a_busy_agent_is_asked_again_after_its_retry_time(rig: Rig) -> None:
    instance = await rig.start()
    async with open_raw(instance) as raw:
        await raw.send_frames(register())
        await raw.receive("reg")
        sending = asyncio.create_task(Caller(instance).send("hello"))
        call = await raw.receive("rpc")
        await raw.send_frames(
            {"t": "err", "id": call["id"], "code": "busy", "msg": "later", "retry": 1}
        )
        await raw.send_frames(complete(await raw.receive("rpc"), "done"))
        assert read_texts(await sending) == ["done"]


async def test_a_removed_permission_ends_the_serving(rig: Rig) -> None:
    instance = await rig.start()
    async with open_raw(instance) as raw:
        await raw.send_frames(register())
        await raw.receive("reg")
        clients = [describe({**client, "serves": []}) for client in CLIENTS]
        fewer = instance.settings.model_validate(
            {**instance.settings.model_dump(exclude_unset=True), "clients": clients}
        )
        await apply_settings(instance.gateway, instance.access, instance.settings, fewer)
        assert (await raw.receive("unreg"))["code"] == "forbidden"
        await await_links(instance, 0)


async def test_unreg_releases_the_name(rig: Rig) -> None:
    instance = await rig.start()
    async with open_raw(instance) as raw:
        await raw.send_frames(register())
        await raw.receive("reg")
        await raw.send_frames({"t": "unreg", "agent": NAME})
        left = await raw.receive("unreg")
        assert left["code"] == "asked"
        await await_links(instance, 0)
        served = await instance.gateway.store.agents.read(NAME)
        assert served is not None
        assert served.links == {}
