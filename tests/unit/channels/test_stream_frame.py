"""A stream whose reader asks for less history: a long Task stays out of memory until its reader loads it."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import orjson
import pytest

from passerelle.channels.stream_frame import FollowedStream, StreamFrame, cut_stream
from passerelle.gateway.a2a.frame_forms import PLAIN

if TYPE_CHECKING:
    from passerelle.channels.stream_frame import Frames
    from passerelle.runtime.memory.room import MemoryDraw
    from passerelle.runtime.records.long_content import LongContent

pytestmark = pytest.mark.anyio
MESSAGES = [{"messageId": "one"}, {"messageId": "two"}]
TASK = orjson.dumps({"task": {"id": "t", "history": MESSAGES}})
STATUS = b'{"statusUpdate":{"taskId":"t"}}'


class StoredTask:
    """A long Task in the store; ``drawn`` is the memory that its reader has given for it."""

    def __init__(self) -> None:
        self.drawn: list[object] = []

    async def load(self, drawn: MemoryDraw) -> bytes:
        self.drawn.append(drawn)
        return TASK


async def cut(frame: StreamFrame, length: int | None) -> StreamFrame:
    async def say() -> Frames:
        yield [frame]

    ((found,),) = [batch async for batch in cut_stream(FollowedStream(say()), length).batches]
    return found


@pytest.mark.parametrize("length", [None, 0, 1, 5])
@pytest.mark.parametrize("is_long", [False, True])
async def test_history_is_cut_and_a_long_task_is_loaded_by_its_reader(
    length: int | None, *, is_long: bool
) -> None:
    stored, drawn = StoredTask(), cast("MemoryDraw", object())
    long = cast("LongContent", stored) if is_long else None
    found = await cut(StreamFrame(TASK[:20] if is_long else TASK, "c", long=long), length)
    assert stored.drawn == []
    assert found.long is long
    # A long Task that is cut cannot be sent as stored.
    assert PLAIN.keeps(found) is (not is_long or length is None)
    shown = orjson.loads((await found.load(drawn)).data)["task"].get("history", [])
    assert shown == MESSAGES[len(MESSAGES) - min(len(MESSAGES), 9 if length is None else length) :]
    assert stored.drawn == ([drawn] if is_long else [])


async def test_frames_that_are_no_task_pass_unchanged() -> None:
    frame = StreamFrame(STATUS, "c")
    assert await cut(frame, 0) is frame
