"""Readers that take a byte now and then: of A2A streams, of events over ``/v1``, and of channels.

All of them follow one task whose artifact comes in numbered chunks, larger than a socket buffers. After a while some
disconnect, and the others read on: they get every chunk once and in order, or a gap where channels allow one.
"""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING, Final

from passerelle.a2a_mapping.members import object_at, text_at
from tests.fuzz.wire import SMALL, Pace, Wire
from tests.memory.agent import NAME
from tests.memory.site import write_call
from tests.support.draining import lag

if TYPE_CHECKING:
    from tests.memory.site import Events, Site

WHOLE_WITHIN_S: Final = 40.0
CHUNKS: Final = 700
CHUNK_KB: Final = 12
"""Together 8 MB; each chunk is inside its event, and not read by reference."""
_SLOW_S: Final = 2.0
_STAYING: Final = 0.6
CALLER: Final = "alice"
_NUMBER: Final = re.compile(rb'"text":"(\d{8})z')
"""Of a chunk; the preview of the whole artifact begins with a number as well."""
_LAST: Final = b'"TASK_STATE_COMPLETED"'
_GAPS: Final = (b"event: gap", b'"t":"gap"')
_TOO_SLOW: Final = b"\x0f\xa8"
"""4008, as in a close frame."""


@dataclass(slots=True, eq=False)
class Slow:
    """A running reader of a stream of ``kind``, and everything that it has read."""

    kind: str
    wire: Wire
    pace: Pace
    is_chunked: bool
    may_skip: bool
    read: bytearray = field(default_factory=bytearray)

    async def read_on(self) -> None:
        """Reads until the task has ended, or the other side has closed."""
        if self.is_chunked:
            async for piece in self.wire.read_chunks():
                self.read += piece
                if self._has_last():
                    return
            return
        while piece := await self.wire.receive():
            self.read += piece
            if self._has_last():
                return

    def judge(self) -> str:
        """The fault of what it has read, or nothing."""
        numbers = [int(found) for found in _NUMBER.findall(self.read)]
        if self.may_skip and (_TOO_SLOW in self.read[-200:] or any(g in self.read for g in _GAPS)):
            return "" if numbers == sorted(set(numbers)) else f"{self.kind}: out of order"
        if numbers != list(range(CHUNKS)):
            return f"{self.kind}: {len(numbers)} chunks of {CHUNKS} after {len(self.read)} bytes"
        return ""

    def _has_last(self) -> bool:
        return _LAST in self.read[-4 * SMALL :]


async def _ask(site: Site, raw: bytes, kind: str, pace: Pace, *, may_skip: bool = False) -> Slow:
    """Sends a request, and returns when its stream has begun."""
    wire = await Wire.open(site.gateway.port, pace)
    await wire.send(raw)
    status, headers = await wire.read_head()
    assert status == 200, (kind, status)
    assert headers["content-type"].startswith("text/event-stream"), (kind, headers)
    return Slow(kind, wire, pace, is_chunked=True, may_skip=may_skip)


def _write_get(site: Site, path: str, **more: str) -> bytes:
    headers = {"Host": "gateway", **site.headers(CALLER), **more}
    lines = "".join(f"{name}: {said}\r\n" for name, said in headers.items())
    return f"GET {path} HTTP/1.1\r\n{lines}\r\n".encode()


async def _read_rpc(site: Site, task: str, _name: str, pace: Pace) -> Slow:
    body = write_call("SubscribeToTask", {"id": task})
    return await _ask(site, site.write_head(CALLER, len(body)) + body, "JSON-RPC stream", pace)


async def _read_http(site: Site, task: str, _name: str, pace: Pace) -> Slow:
    raw = _write_get(site, f"/agents/{NAME}/tasks/{task}:subscribe")
    return await _ask(site, raw, "HTTP+JSON stream", pace)


async def _read_events(site: Site, task: str, name: str, pace: Pace) -> Slow:
    path = f"/v1/streams/task:{task}/events?device={name}"
    raw = _write_get(site, path, Accept="text/event-stream")
    return await _ask(site, raw, "events over /v1", pace, may_skip=True)


async def _read_channel(site: Site, task: str, name: str, pace: Pace) -> Slow:
    secret = site.headers(CALLER)["Authorization"].removeprefix("Bearer ")
    link = await lag(site.gateway.port, secret, name, f"task:{task}")
    return Slow("channel", Wire(link, pace), pace, is_chunked=False, may_skip=True)


KINDS: Final = (_read_rpc, _read_http, _read_events, _read_channel)


async def play(site: Site, each: int, chance: Random) -> list[str]:
    """Runs ``each`` readers of each kind; returns their faults."""
    async with site.stream(CALLER, f"artifact hold=1 n={CHUNKS} kb={CHUNK_KB}") as events:
        first = object_at(await events.next() or {}, "result")
        task = text_at(object_at(first, "task"), "id")
        slow: list[Slow] = []
        try:
            for number in range(each * len(KINDS)):
                pace = Pace(Random(chance.random()))
                kind = KINDS[number % len(KINDS)]
                slow.append(await kind(site, task, f"dev_slow_{number}", pace))
            await site.release()
            return await _read_all(events, slow, chance)
        finally:
            for one in slow:
                one.wire.leave(rudely=True)


async def _read_all(events: Events, slow: list[Slow], chance: Random) -> list[str]:
    staying = [one for one in slow if chance.random() < _STAYING]
    reading = {one: asyncio.create_task(one.read_on()) for one in slow}
    try:
        async with asyncio.timeout(WHOLE_WITHIN_S):
            # A fast reader gets everything, whatever other readers do.
            last = await events.read_to_end()
            await asyncio.sleep(_SLOW_S)
            for one in slow:
                one.pace.is_slow = False
                if one not in staying:
                    reading[one].cancel()
                    one.wire.leave(rudely=True)
            ended = await asyncio.gather(*(reading[one] for one in staying), return_exceptions=True)
    except TimeoutError:
        late = [f"{one.kind}: {len(one.read)} bytes" for one in slow if not reading[one].done()]
        return [f"readers had not everything within {WHOLE_WITHIN_S:g} s: {late}"]
    finally:
        for task in reading.values():
            task.cancel()
        await asyncio.gather(*reading.values(), return_exceptions=True)
    faults = [
        f"{one.kind}: {error!r}"
        for one, error in zip(staying, ended, strict=True)
        if error is not None
    ]
    if _LAST.strip(b'"').decode() not in str(last):
        faults.append(f"a fast reader did not receive the end: {str(last)[:300]}")
    return faults + [fault for one in staying if (fault := one.judge())]
