"""Who may serve which name, what a link may say, and what the operator sees of it."""

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
    """A link that says what it likes."""

    def __init__(self, socket: ClientConnection) -> None:
        self._socket = socket
        self._heard: list[Frame] = []
        self.welcome: Frame = {}

    async def tell(self, *frames: Frame) -> None:
        await self._socket.send("\n".join(orjson.dumps(frame).decode() for frame in frames))

    async def hear(self, kind: str) -> Frame:
        """The next frame of a type; others are passed over."""
        while (frame := await self.hear_any())["t"] != kind:
            pass
        return frame

    async def hear_any(self) -> Frame:
        """The next frame."""
        async with asyncio.timeout(15):
            while not self._heard:
                lines = str(await self._socket.recv()).split("\n")
                self._heard += [cast("Frame", orjson.loads(line)) for line in lines]
        return self._heard.pop(0)

    async def hear_close(self) -> int:
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
        await raw.tell({**hello, **members})
        raw.welcome = await raw.hear("welcome")
        yield raw


def register(agent: str = NAME, **members: object) -> Frame:
    return {"t": "reg", "agent": agent, "card": CARD, "max": 2, **members}


def complete(call: Frame, text: str) -> Frame:
    """The answer of an agent that is done at once."""
    task = {
        "id": f"remote-{call['id']}",
        "contextId": call["d"]["message"]["contextId"],
        "status": {"state": "TASK_STATE_COMPLETED"},
        "artifacts": [{"artifactId": "a", "parts": [{"text": text}]}],
    }
    return {"t": "ok", "id": call["id"], "d": {"task": task}}


async def test_a_link_gets_calls_and_its_answers_come_back(rig: Rig) -> None:
    instance = await rig.start()
    async with open_raw(instance) as raw:
        await raw.tell(register())
        registered = await raw.hear("reg")
        assert registered == {
            "t": "reg", "ok": True, "agent": NAME, "url": f"/agents/{NAME}", "gen": 1
        }  # fmt: skip
        sending = asyncio.create_task(Caller(instance).send("hello"))
        call = await raw.hear("rpc")
        assert (call["to"], call["m"], call["hdr"]["A2A-Version"]) == (
            NAME,
            "a2a:SendMessage",
            "1.0",
        )
        assert call["dl"] > 0
        await raw.tell(complete(call, "done"))
        assert read_texts(await sending) == ["done"]


async def test_what_an_older_link_says_late_is_not_heard(rig: Rig) -> None:
    instance = await rig.start()
    caller = Caller(instance)
    async with open_raw(instance, device="older") as older:
        await older.tell(register())
        await older.hear("reg")
        sending = asyncio.create_task(caller.send("hello"))
        call = await older.hear("rpc")
        async with open_raw(instance, device="newer") as newer:
            await newer.tell(register())
            lost = await older.hear("unreg")
            assert (lost["agent"], lost["code"]) == (NAME, "superseded")
            await older.tell(complete(call, "late"))
            looking = await newer.hear("rpc")
            assert looking["m"] == "a2a:ListTasks", "the agent is asked before anything is sent"
            found = complete(call, "found")["d"]["task"]
            found["history"] = [call["d"]["message"]]
            await newer.tell({"t": "ok", "id": looking["id"], "d": {"tasks": [found]}})
            assert read_texts(await sending) == ["found"]


async def test_a_link_that_floods_is_refused_and_then_closed(rig: Rig) -> None:
    instance = await rig.start()
    caller = Caller(instance)
    async with open_raw(instance) as raw:
        await raw.tell(register())
        await raw.hear("reg")
        streaming = asyncio.create_task(
            caller.collect("SendStreamingMessage", caller.write("hello"))
        )
        call = await raw.hear("rpc")
        item: Frame = {"t": "item", "id": call["id"], "d": {"statusUpdate": {}}}
        await raw.tell(*({**item, "n": number} for number in range(1, 16)))
        for first in range(16, call["win"] + 20, 15):
            await raw.tell(*({**item, "n": number} for number in range(first, first + 15)))
        assert (await raw.hear("error"))["code"] == "window"
        forged = {"t": "welcome"}
        for _ in range(8):
            await raw.tell(forged)
        assert await raw.hear_close() == 4514
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
async def test_a_registration_that_cannot_be_is_refused(rig: Rig, frame: Frame, code: str) -> None:
    instance = await rig.start()
    async with open_raw(instance) as raw:
        await raw.tell(frame)
        refused = await raw.hear("error")
        assert (refused["code"], refused["of"]) == (code, "reg")
    assert find_served(instance) == []


async def test_refused_change_of_a_card_leaves_the_name_with_its_link_until_that_ends(
    rig: Rig,
) -> None:
    """Its link forgot the name and the gateway did not, which served it over a socket that was gone."""
    instance = await rig.start()
    async with open_raw(instance, device="older") as raw:
        await raw.tell(register())
        await raw.hear("reg")
        await raw.tell(register(card={"description": "no name"}))
        assert (await raw.hear("error"))["code"] == "invalid_agent_response"
        sending = asyncio.create_task(Caller(instance).send("hello"))
        call = await raw.hear("rpc")
        await raw.tell(complete(call, "done"))
        assert read_texts(await sending) == ["done"]
        # As often as it likes; a further one that is right counts.
        await raw.tell(register(card={"description": "no name"}), register(max=3))
        assert (await raw.hear("reg"))["agent"] == NAME
    await await_links(instance, 0)
    async with open_raw(instance, device="newer") as raw:
        await raw.tell(register())
        assert (await raw.hear("reg"))["agent"] == NAME
        await raw.tell(register(card={"description": "no name"}), {"t": "unreg", "agent": NAME})
        assert (await raw.hear("unreg"))["code"] == "asked"
        await await_links(instance, 0)
        await raw.tell(register(), {"t": "unreg", "agent": NAME})
        assert [(await raw.hear_any())["t"], (await raw.hear_any())["t"]] == ["reg", "unreg"]
        await await_links(instance, 0)


async def test_frames_of_agents_are_refused_from_everybody_else(rig: Rig) -> None:
    instance = await rig.start()
    async with open_raw(instance, role="ui") as raw:
        await raw.tell(register(), {"t": "ok", "id": "g1", "d": {}})
        assert (await raw.hear("error"))["code"] == "forbidden_frame"
        assert (await raw.hear("error"))["code"] == "forbidden_frame"


async def test_no_more_calls_are_open_than_an_agent_takes(rig: Rig) -> None:
    instance = await rig.start()
    caller = Caller(instance)
    async with open_raw(instance) as raw:
        await raw.tell(register(max=1))
        await raw.hear("reg")
        first, second = (asyncio.create_task(caller.send(text)) for text in ("one", "two"))
        call = await raw.hear("rpc")
        (served,) = find_served(instance)
        await wait_until(lambda: served.working == 1, 15, "one call is open")
        await raw.tell(complete(call, "done"))
        await raw.tell(complete(await raw.hear("rpc"), "done"))
        assert [read_texts(one) for one in await asyncio.gather(first, second)] == [["done"]] * 2


async def test_an_agent_that_is_busy_is_asked_again_at_its_time(rig: Rig) -> None:
    instance = await rig.start()
    async with open_raw(instance) as raw:
        await raw.tell(register())
        await raw.hear("reg")
        sending = asyncio.create_task(Caller(instance).send("hello"))
        call = await raw.hear("rpc")
        await raw.tell({"t": "err", "id": call["id"], "code": "busy", "msg": "later", "retry": 1})
        await raw.tell(complete(await raw.hear("rpc"), "done"))
        assert read_texts(await sending) == ["done"]


async def test_a_grant_that_is_taken_away_ends_the_serving(rig: Rig) -> None:
    instance = await rig.start()
    async with open_raw(instance) as raw:
        await raw.tell(register())
        await raw.hear("reg")
        clients = [describe({**client, "serves": []}) for client in CLIENTS]
        fewer = instance.settings.model_validate(
            {**instance.settings.model_dump(exclude_unset=True), "clients": clients}
        )
        await apply_settings(instance.gateway, instance.access, instance.settings, fewer)
        assert (await raw.hear("unreg"))["code"] == "forbidden"
        await await_links(instance, 0)


async def test_unreg_takes_the_name_back(rig: Rig) -> None:
    instance = await rig.start()
    async with open_raw(instance) as raw:
        await raw.tell(register())
        await raw.hear("reg")
        await raw.tell({"t": "unreg", "agent": NAME})
        left = await raw.hear("unreg")
        assert left["code"] == "asked"
        await await_links(instance, 0)
        served = await instance.gateway.store.agents.read(NAME)
        assert served is not None
        assert served.links == {}
