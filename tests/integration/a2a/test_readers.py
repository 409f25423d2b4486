"""Many readers of one stream: equal bytes for all, on every instance, and a stalled reader delays no other."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import pytest

from tests.integration.a2a.rig import OWNER, Event, Rig, run_rig
from tests.integration.a2a.test_streaming import begin
from tests.support.scripted_tasks import Turn
from tests.support.waiting import wait_until

PIECES: Final = 400
PIECE_BYTES: Final = 15_000
"""Just small enough to be stored in its event; all together far more than sockets and queues hold."""

pytestmark = pytest.mark.anyio


async def flood(turn: Turn) -> None:
    """A long artifact."""
    await turn.status("WORKING")
    for number in range(PIECES):
        text = f"{number:05d}".ljust(PIECE_BYTES, "x")
        await turn.artifact(text, append=number > 0, last=number == PIECES - 1)
    await turn.status("COMPLETED")


async def read_all(rig: Rig, task_id: str, into: list[Event]) -> None:
    """Subscribes and reads to the end."""
    async with rig.stream("SubscribeToTask", {"id": task_id}) as events:
        into.append(await anext(events))
        into += [event async for event in events]


@contextmanager
def open_stalled(rig: Rig, task_id: str) -> Generator[socket.socket]:
    """Opens a subscriber that sends its request and reads nothing, with the smallest socket buffer."""
    address = urlsplit(rig.url)
    with socket.socket() as raw:
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        raw.connect((address.hostname, address.port))
        head = (
            f"GET /agents/echo/tasks/{task_id}:subscribe HTTP/1.1\r\nHost: x\r\nA2A-Version: 1.0\r\n"
            f"Authorization: Bearer {OWNER}\r\nConnection: close\r\n\r\n"
        )
        raw.sendall(head.encode())
        yield raw


def read_rest(raw: socket.socket) -> bytes:
    """Reads up to the end of the connection."""
    raw.settimeout(10)
    content = b""
    while piece := raw.recv(1 << 20):
        content += piece
    return content


@pytest.mark.requirement("I3")
async def test_readers_on_two_instances_get_equal_bytes_in_equal_order(
    rig: Rig, tmp_path: Path
) -> None:
    async with run_rig(rig.engine, tmp_path / "other") as other:
        task_id = await begin(rig)
        places = (rig, other, rig, other)
        readers: list[list[Event]] = [[] for _ in places]
        pairs = zip(places, readers, strict=True)
        reading = [asyncio.create_task(read_all(at, task_id, into)) for at, into in pairs]
        await wait_until(lambda: all(readers), 15, "all of them have the task")
        rig.peer.release_all()
        await asyncio.gather(*reading)
    seen = [[(event.id, event.data) for event in reader] for reader in readers]
    assert len(seen[0]) > 3
    assert seen[1:] == seen[:-1]


@pytest.mark.requirement("I3")
async def test_stalled_reader_delays_no_other_and_misses_nothing(rig: Rig) -> None:
    rig.peer.next(flood)
    rig.peer.hold()
    rig.peer.release(1)
    params = rig.message("go", configuration={"returnImmediately": True})
    task_id = str((await rig.call("SendMessage", params))["task"]["id"])
    with open_stalled(rig, task_id) as raw:
        seen: list[Event] = []
        reading = asyncio.create_task(read_all(rig, task_id, seen))
        await wait_until(lambda: seen, 15, "the other one reads")
        rig.peer.release_all()
        await asyncio.wait_for(reading, 20)
        assert "TASK_STATE_COMPLETED" in seen[-1].data
        one = b'operation="SubscribeToTask",outcome="ok"} 1.0'
        await wait_until(lambda: one in rig.metrics.render(), 15, "one of the two has its answer")
        content = await asyncio.to_thread(read_rest, raw)
        await wait_until(
            lambda: one not in rig.metrics.render(), 15, "the other one has it as well"
        )
    cursors = [line[4:] for line in content.decode().splitlines() if line.startswith("id: ")]
    assert cursors[-(PIECES + 1) :] == [event.id for event in seen[-(PIECES + 1) :]]
