"""Two gateways over one server: the one that serves a stream is killed, and its reader continues at the other."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Final

import httpx
import orjson
import pytest

from passerelle.a2a_mapping.extensions import RESUME
from passerelle.protocol.cursor import parse_cursor
from passerelle.store.engine_binary import find_engine
from tests.support.engine import run_server
from tests.support.processes import (
    AGENT,
    open_caller,
    run_gateway,
    share_owner,
    start_together,
)
from tests.support.scripted_peer import ScriptedPeer
from tests.support.stored_events import find_streams, list_stored

CHUNKS: Final = 6
BEFORE: Final = 4
"""Events that the reader has when its gateway is killed."""
TAKEN_OVER_WITHIN_S: Final = 20.0

pytestmark = pytest.mark.anyio


async def read(response: httpx.Response) -> AsyncGenerator[tuple[str, dict[str, Any]]]:
    """Cursor and StreamResponse of each event."""
    assert response.status_code == httpx.codes.OK, await response.aread()
    cursor = ""
    async for line in response.aiter_lines():
        if line.startswith("id: "):
            cursor = line.removeprefix("id: ")
        elif line.startswith("data: "):
            yield cursor, orjson.loads(line.removeprefix("data: "))


def read_shown(url: str) -> list[tuple[int, bytes]]:
    """Sequence and frame of every event visible to callers, read directly from the server."""
    (stream,) = find_streams(url)
    return [(one.sequence, one.cut_frame()) for one in list_stored(url, stream) if one.frame]


@pytest.mark.requirement("CHN-3", "I3", "I8")
async def test_reader_of_a_killed_instance_gets_every_event_once_from_the_other(
    tmp_path: Path,
) -> None:
    async with AsyncExitStack() as stack:
        server = stack.enter_context(run_server(find_engine(None)))
        peer = await stack.enter_async_context(ScriptedPeer(AGENT))
        folders = (tmp_path / "first", tmp_path / "second")
        share_owner(folders)
        running = [run_gateway(one, {AGENT: peer.url}, redis_url=server.url) for one in folders]
        first, second = await start_together(stack, running)
        peer.hold()
        peer.release(BEFORE)
        seen: list[tuple[str, dict[str, Any]]] = []
        async with open_caller(first) as caller:
            message = caller.write(f"chunks {CHUNKS}")
            path = f"/agents/{AGENT}/message:stream"
            async with caller.http.stream("POST", path, json=message) as response:
                events = read(response)
                seen += [await anext(events) for _ in range(BEFORE)]
                first.kill()
                with pytest.raises(httpx.HTTPError):
                    await anext(events)
        peer.release_all()
        task_id = seen[0][1]["task"]["id"]
        async with open_caller(second) as caller:
            path = f"/agents/{AGENT}/tasks/{task_id}:subscribe"
            headers = {"A2A-Extensions": RESUME, "Last-Event-ID": seen[-1][0]}
            async with caller.http.stream(
                "GET", path, headers=headers, timeout=TAKEN_OVER_WITHIN_S
            ) as response:
                assert response.headers["A2A-Stream-Resumed"] == "true"
                rest = [event async for event in read(response)]
            task = await caller.get_task(task_id)
        assert task["status"]["state"] == "TASK_STATE_COMPLETED"
        shown = read_shown(server.url)
        assert [parse_cursor(cursor).sequence for cursor, _ in (*seen, *rest)] == [
            sequence for sequence, _ in shown
        ]
        assert [frame for _, frame in (*seen, *map(unmark, rest))] == [
            orjson.loads(frame) for _, frame in shown
        ]
        said = [part["text"] for part in task["artifacts"][0]["parts"]]
        assert len(said) == len(set(said)) == CHUNKS
        assert peer.texts == [f"chunks {CHUNKS}"]


def unmark(event: tuple[str, dict[str, Any]]) -> tuple[str, dict[str, Any]]:
    """An event without the mark of the extension, which must name its cursor."""
    cursor, frame = event
    (holder,) = frame.values()
    assert holder["metadata"].pop(RESUME)["cursor"] == cursor
    if not holder["metadata"]:
        del holder["metadata"]
    return event
