"""Two devices in one stream: all six channel facts, in order and under the same ids (EXT-8)."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from passerelle.core.ports.log import StreamKind, StreamRef
from passerelle.core.principal import Principal
from passerelle.core.wire.json import JsonObject
from tests.integration.callers.rig import Instance, Rig
from tests.integration.devices.asking import ADA, BOB, ask, make_answer
from tests.support.raw_channel import RawChannel, ServerFrame, open_channel
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio
INBOX = StreamRef(StreamKind.INBOX, Principal("ada").key)


async def read_facts(at: Instance) -> list[dict[str, Any]]:
    """Returns the channel facts in Ada's inbox, in order."""
    page = await at.gateway.store.log.read_page(INBOX, 0, 1_000)
    events = [orjson.loads(one.data) for one in page if one.type.startswith("channel.")]
    return [{"type": one["type"].removeprefix("channel."), **one["payload"]} for one in events]


async def until_stored(at: Instance, kind: str, count: int = 1) -> None:
    async def look() -> bool:
        return [one["type"] for one in await read_facts(at)].count(kind) >= count

    await wait_until(look, 10, f"{count} times {kind} in the inbox")


async def greet(channel: RawChannel, device: str, resume: str | None = None) -> ServerFrame:
    hello: JsonObject = {"t": "hello", "v": 1, "device": device, "role": "ui", "token": "ada-key"}
    await channel.send({**hello, "resume": resume})
    return await channel.expect("welcome")


@pytest.mark.requirement("EXT-8", "PRS-9", "CHN-1", "CHN-10")
async def test_two_devices_one_disconnects_resumes_and_answers(rig: Rig) -> None:
    at = await rig.start(clients=[ADA, BOB])
    url = str(at.http.base_url).rstrip("/")
    async with open_channel(url) as desk:
        desk_link = (await greet(desk, "desk"))["channel"]
        await until_stored(at, "connected")
        async with open_channel(url) as phone:
            welcome = await greet(phone, "phone")
            phone_link = welcome["channel"]
            await until_stored(at, "connected", 2)
            phone.abort()
        await until_stored(at, "disconnected")
        async with open_channel(url) as phone:
            assert (await greet(phone, "phone", welcome["resume"]))["channel"] == phone_link
            await until_stored(at, "resumed")
            for channel in (desk, phone):
                await channel.send({"t": "presence", "state": "active"})
                await channel.expect("presence")
            view = await ask(at)
            await until_stored(at, "permission_forwarded", 2)
            call: JsonObject = {"t": "rpc", "id": "1", "m": "respond_action", "idem": "k"}
            await phone.send({**call, "d": {"actionId": view["actionId"], **make_answer(view)}})
            assert (await phone.expect("ok", id="1"))["d"]["outcome"] == "won"
            await until_stored(at, "permission_returned")
            said: JsonObject = {"device": "phone", "kind": "status", "code": "seen"}
            await phone.send({"t": "rpc", "id": "2", "m": "send_notice", "d": said})
            await until_stored(at, "message")
            facts = await read_facts(at)
    kinds = [one["type"] for one in facts]
    first_kinds = [kind for place, kind in enumerate(kinds) if kind not in kinds[:place]]
    assert first_kinds == [
        "connected", "disconnected", "resumed",
        "permission_forwarded", "permission_returned", "message",
    ]  # fmt: skip
    links = {
        kind: [one.get("channelId") for one in facts if one["type"] == kind] for kind in first_kinds
    }
    assert links["connected"] == [desk_link, phone_link]
    assert links["disconnected"] == links["resumed"] == links["message"] == [phone_link]
    assert set(links["permission_forwarded"]) == {desk_link, phone_link}
