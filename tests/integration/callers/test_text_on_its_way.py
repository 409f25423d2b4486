"""Volatile text of an agent on its way to devices: over the driving instance, another one, early and late."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest

from passerelle.client.channel import ChannelClient
from passerelle.client.items import AnyItem, Delta, Event, Live
from tests.integration.callers.rig import Instance, Rig
from tests.support.scripted_tasks import Turn
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.anyio, pytest.mark.requirement("EVC-6", "PRS-9")]
ADA = {"name": "ada", "scopes": ["a2a:call", "channels:connect", "tasks:read"]}
WHOLE = "one twö three 😀"


async def send_poem(turn: Turn) -> None:
    """Three pieces of one artifact; the last one has a character of two UTF-16 code units."""
    await turn.status("WORKING")
    await turn.artifact("one ", artifact_id="poem", last=False)
    await turn.artifact("twö ", artifact_id="poem", append=True, last=False)
    await turn.artifact("three 😀", artifact_id="poem", append=True, last=True)
    await turn.status("COMPLETED")


@dataclass
class Screen:
    """What a device shows: volatile text, until the event that closes the block replaces it."""

    facade: str
    shown: str = ""
    events: list[str] = field(default_factory=list[str])
    is_live: bool = False
    deltas: int = 0

    async def shows(self, text: str) -> None:
        """Waits until exactly this text is shown."""
        await wait_until(lambda: self.shown == text, 15, f"shows {text!r}")

    async def ends(self) -> None:
        """Waits for the end of the task."""
        await wait_until(lambda: "task.completed" in self.events, 15, "the end of the task")

    def take(self, item: object) -> None:
        match item:
            case Delta(block=block, text=text, anew=anew):
                assert block == f"{self.facade}/poem"
                self.deltas += 1
                self.shown = text if anew else self.shown + text
            case Event(data=data):
                self.events.append(str(data["type"]))
            case Live():
                self.is_live = True
            case _:
                return


@asynccontextmanager
async def screen(
    instance: Instance, stream: str, facade: str, device: str
) -> AsyncGenerator[Screen]:
    """A device that follows a stream with its volatile text."""
    url = str(instance.http.base_url).replace("http", "ws", 1).rstrip("/") + "/v1/channel"
    seen = Screen(facade)
    async with ChannelClient(url, device=device, token="ada-key") as client:

        async def read() -> None:
            async for item in client.stream(stream, start="live", volatile=True):
                seen.take(item)

        reading = asyncio.create_task(read())
        try:
            await wait_until(lambda: seen.is_live, 15, f"{device} is live")
            yield seen
        finally:
            reading.cancel()


async def begin(rig: Rig, driving: Instance) -> tuple[str, str]:
    """Starts a task whose agent waits before its first text; returns its facade id and its session."""
    rig.peer.next(send_poem)
    rig.peer.hold()
    rig.peer.release(2)  # the task, and its status WORKING
    sent = (await driving.send("ada-key", returnImmediately=True)).json()
    task = str(sent["result"]["task"]["id"])
    return task, rig.list_sessions()[0]


async def test_early_and_late_readers_of_both_instances_end_with_the_same_text(rig: Rig) -> None:
    driving = await rig.start(clients=[ADA])
    other = await rig.start(clients=[ADA])
    task, session = await begin(rig, driving)
    async with (
        screen(driving, f"task:{task}", task, "early") as early,
        screen(other, f"session:{session}", task, "elsewhere") as elsewhere,
    ):
        rig.peer.release(2)
        for one in (early, elsewhere):
            await one.shows("one twö ")
        async with (
            screen(driving, f"session:{session}", task, "late") as late,
            screen(other, f"task:{task}", task, "late-elsewhere") as late_elsewhere,
        ):
            await late.shows("one twö ")
            # The text and the end arrive over two paths: wait for each separately.
            rig.peer.release(1)
            for one in (early, elsewhere, late):
                await one.shows(WHOLE)
            rig.peer.release_all()
            screens = (early, elsewhere, late, late_elsewhere)
            for one in screens:
                await one.ends()
            for one in (early, elsewhere, late):
                assert one.shown == WHOLE
            assert (
                late_elsewhere.shown == ""
            )  # it missed the beginning of the text: it shows none, the artifact has all of it
            for one in screens:
                assert "artifact.changed" in one.events
                assert "model.delta" not in one.events
    answer = await driving.call("ada-key", "GetTask", {"id": task})
    [artifact] = answer.json()["result"]["artifacts"]
    assert "".join(part["text"] for part in artifact["parts"]) == WHOLE


async def test_follower_without_the_volatile_option_gets_no_deltas(rig: Rig) -> None:
    driving = await rig.start(clients=[ADA])
    _, session = await begin(rig, driving)
    url = str(driving.http.base_url).replace("http", "ws", 1).rstrip("/") + "/v1/channel"
    async with ChannelClient(url, device="plain", token="ada-key") as client:
        rig.peer.release_all()
        seen: list[AnyItem] = []
        async for item in client.stream(f"session:{session}", start="start"):
            seen.append(item)
            if isinstance(item, Event) and item.data["type"] == "task.completed":
                break
    assert not any(isinstance(item, Delta) for item in seen)
