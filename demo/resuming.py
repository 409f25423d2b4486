"""(b) A report streams to its caller while two devices follow; one loses its network and misses no event."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from passerelle.client.items import Connected
from passerelle.demo.caller import ends_well, open_caller, read_chunk, say
from passerelle.demo.checks import wait_for
from passerelle.demo.devices import DemoDevice, open_device
from passerelle.demo.network import Network, open_network

if TYPE_CHECKING:
    from a2a.types import StreamResponse

    from passerelle.demo.stage import Stage

LINES: Final = 12
_MISSED: Final = 4
_ASK: Final = f"a report, please: chunks={LINES} every=0.25"


async def play(stage: Stage) -> None:
    """Plays one caller, two devices and one outage."""
    checks, token = stage.checks, stage.gateway.token
    checks.print_heading(
        "b", "the agent `report` streams; two devices follow, one loses its network"
    )
    async with (
        open_caller(stage.find_agent("report"), token) as (_, client),
        open_network(stage.gateway.port) as tunnel,
        open_device(stage.gateway.url, token, "laptop") as laptop,
        open_device(tunnel.url, token, "phone") as phone,
    ):
        frames: list[StreamResponse] = []
        task_id: asyncio.Future[str] = asyncio.get_running_loop().create_future()

        async def call() -> None:
            async for frame in client.send_message(say(_ASK)):
                frames.append(frame)
                if not task_id.done():
                    task_id.set_result(frame.task.id)

        calling = asyncio.create_task(call(), name="caller")
        try:
            session = await stage.find_session(await asyncio.wait_for(task_id, 10))
            stream = f"session:{session}"
            checks.note("two devices follow", task=task_id.result(), session=session)
            for device in (laptop, phone):
                device.follow(stream)
            await _lose_network(stage, tunnel, laptop, phone, stream)
            await asyncio.wait_for(calling, 20)
        finally:
            calling.cancel()
        _check_caller(stage, frames)
        await _check_devices(stage, laptop, phone, stream)


async def _lose_network(
    stage: Stage, tunnel: Network, laptop: DemoDevice, phone: DemoDevice, stream: str
) -> None:
    await phone.await_lines(stream, 2)
    before = phone.connections
    tunnel.pull_out()
    await wait_for(
        "the laptop sees what the phone does not",
        lambda: laptop.find_end(stream) >= phone.find_end(stream) + _MISSED,
    )
    stage.checks.check(
        f"the phone is cut off while {_MISSED} events and more go by",
        not isinstance(phone.client.status, Connected),
        phone.client.status,
        phone=phone.find_end(stream),
        laptop=laptop.find_end(stream),
    )
    tunnel.plug_in()
    await wait_for("the phone is back", lambda: phone.connections > before)


def _check_caller(stage: Stage, frames: list[StreamResponse]) -> None:
    checks = stage.checks
    chunks = [chunk for frame in frames if (chunk := read_chunk(frame)) is not None]
    wanted = [f"line {line} of {LINES}\n" for line in range(1, LINES + 1)]
    checks.equal("the caller got every line once and in order", chunks, wanted, lines=len(chunks))
    checks.check("its stream ends with the completed task", ends_well(frames[-1]), frames[-1])


async def _check_devices(stage: Stage, laptop: DemoDevice, phone: DemoDevice, stream: str) -> None:
    checks = stage.checks
    for device in (laptop, phone):
        await device.await_event(stream, "task.completed")
    await wait_for(
        "both devices are at the same event",
        lambda: laptop.find_end(stream) == phone.find_end(stream),
    )
    seen = phone.sequences(stream)
    checks.equal(
        "the phone resumed: no gap, no repeat",
        seen,
        list(range(seen[0], seen[0] + len(seen))),
        events=len(seen),
        connections=phone.connections,
    )
    checks.equal("they received no gap", phone.gaps + laptop.gaps, [])
    checks.equal(
        "both devices have the same list of events",
        phone.events[stream],
        laptop.events[stream],
        last=seen[-1],
    )
