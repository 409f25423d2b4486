"""Notices over a channel: delivered to the person's devices and stored, without a turn or a task (CHN-15)."""

from __future__ import annotations

import asyncio
from typing import Any, Final

import pytest

from passerelle.client.channel import CallRefused, ChannelClient
from passerelle.client.items import Event, Snapshot
from tests.integration.callers.rig import Instance, Rig
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.anyio, pytest.mark.requirement("CHN-15", "EXT-8")]
SCOPES: Final = ["a2a:call", "channels:connect", "tasks:read", "approvals:read"]
ADA: Final = {"name": "ada", "scopes": SCOPES}
BOB: Final = {"name": "bob", "scopes": SCOPES}
NOTICE: Final = {"device": "phone", "kind": "protocol", "code": "upgrade", "text": "v2 is out"}


def connect(instance: Instance, device: str, who: str = "ada") -> ChannelClient:
    url = str(instance.http.base_url).replace("http", "ws", 1).rstrip("/") + "/v1/channel"
    return ChannelClient(url, device=device, token=f"{who}-key")


class Inbox(list[dict[str, Any]]):
    """The inbox as a device sees it: every event, and the notices of the snapshot."""

    def __init__(self) -> None:
        self.notices: list[Any] = []
        self.is_open = False

    async def follow(self, client: ChannelClient) -> None:
        async for item in client.stream("inbox"):
            match item:
                case Snapshot(data=data):
                    notices = data["notices"]
                    assert isinstance(notices, list)
                    self.notices, self.is_open = notices, True
                case Event(data=data):
                    self.append(dict(data))
                case _:
                    continue

    def said(self) -> list[Any]:
        return [one["payload"] for one in self if one["type"] == "channel.message"]


async def test_notice_reaches_the_other_devices_without_a_turn_or_task(rig: Rig) -> None:
    here = await rig.start(clients=[ADA, BOB])
    there = await rig.start(clients=[ADA, BOB])
    seen, bobs, later = Inbox(), Inbox(), Inbox()
    async with (
        connect(here, "phone") as phone,
        connect(there, "desk") as desk,
        connect(there, "phone", "bob") as others,
    ):
        following = [
            asyncio.create_task(seen.follow(desk)),
            asyncio.create_task(bobs.follow(others)),
        ]
        await wait_until(lambda: seen.is_open and bobs.is_open, 15, "both inboxes are open")
        answer = await phone.call("send_notice", dict(NOTICE), idem="once")
        assert await phone.call("send_notice", dict(NOTICE), idem="once") == answer
        await wait_until(seen.said, 15, "the notice comes")
        assert phone.welcome is not None
        assert answer == {"channelId": phone.welcome.channel}
        expected = {
            "channelId": phone.welcome.channel,
            "kind": "protocol",
            "direction": "in",
            "code": "upgrade",
            "text": "v2 is out",
        }
        assert seen.said() == [expected]
        async with connect(here, "tablet") as tablet:
            following.append(asyncio.create_task(later.follow(tablet)))
            await wait_until(lambda: later.notices, 15, "who comes later finds it in the snapshot")
            assert [one["payload"] for one in later.notices] == [expected]
        assert bobs.said() == []
        for one in following:
            one.cancel()
    home = [one["type"] for one in await here.read_home("ada")]
    assert home.count("channel.message") == 1
    stored = [
        one["type"] for session in rig.list_sessions() for one in await here.read_session(session)
    ]
    assert not [kind for kind in stored if kind.startswith(("turn.", "task.", "message."))]
    assert rig.counted() == 0


async def test_notice_for_an_unknown_device_is_refused(rig: Rig) -> None:
    here = await rig.start(clients=[ADA, BOB])
    async with connect(here, "phone") as phone, connect(here, "bobs", "bob") as bobs:
        await phone.call("list_actions", {})
        await bobs.call("list_actions", {})
        for device in ("nobody", "bobs"):
            with pytest.raises(CallRefused) as refused:
                await phone.call("send_notice", {**NOTICE, "device": device})
            assert refused.value.code == "not_found"
        with pytest.raises(CallRefused) as refused:
            await phone.call("send_notice", {**NOTICE, "kind": "turn"})
        assert refused.value.code == "invalid_input"
    headers = {"Authorization": "Bearer ada-key"}
    answer = await here.http.post("/v1/notices", json=NOTICE, headers=headers)
    assert answer.status_code == 202
    assert [one["type"] for one in await here.read_home("ada")].count("channel.message") == 1
