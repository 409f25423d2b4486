"""Upgrades a store of an earlier schema, once, when the first instance of this version opens it.

Schema 1 has no time of the last event in the heads of sessions, by which ended sessions are found.
"""

from __future__ import annotations

import asyncio
import sys
from collections import defaultdict
from typing import TYPE_CHECKING, Final

import orjson

from passerelle.core.ids import Shard
from passerelle.core.ports.log import StreamKind, StreamRef
from passerelle.store import keys
from passerelle.store.connection import pack
from passerelle.store.key_scan import scan_keys
from passerelle.store.replies import as_int
from passerelle.store.scripts import Script
from passerelle.store.stream_entries import as_entry_rows, read_row

if TYPE_CHECKING:
    from collections.abc import Sequence

    from passerelle.store.connection import RespValue
    from passerelle.store.lua_script import ControlValue
    from passerelle.store.nodes import Nodes

_TIMES_SINCE: Final = 2
"""The first schema whose heads have a time."""
_TAGGED: Final = len("{00}:s:")
_COMPLETE: Final = Script("complete_head", as_int)


async def complete_heads(nodes: Nodes, schema: int) -> int:
    """Adds times to the session heads of a store of this schema; returns how many had none. Can be killed and repeated.

    Raises:
        StoreUnavailable: a node does not answer.
    """
    count = 0
    if schema < _TIMES_SINCE:
        for node in nodes.all:
            async for names in scan_keys(node, keys.EVERY_SESSION):
                streams = defaultdict[Shard, list[StreamRef]](list)
                for name in names:
                    stream = StreamRef(StreamKind.SESSION, name[_TAGGED:].decode())
                    streams[stream.shard].append(stream)
                for shard, some in streams.items():
                    count += await _complete_some(nodes, shard, some)
    return count


async def _complete_some(nodes: Nodes, shard: Shard, streams: Sequence[StreamRef]) -> int:
    asked = (pack("HGET", keys.head(stream), "at") for stream in streams)
    times = await nodes.query_in_background(shard, *asked)
    without = [stream for stream, at in zip(streams, times, strict=True) if at is None]
    asked = (pack("XREVRANGE", keys.entries(stream), "+", "-", "COUNT", 1) for stream in without)
    last = await nodes.query_in_background(shard, *asked) if without else []
    writes = (_complete(nodes, *one) for one in zip(without, last, strict=True))
    return sum(await asyncio.gather(*writes))


async def _complete(nodes: Nodes, stream: StreamRef, reply: RespValue) -> int:
    last = [one for row in as_entry_rows(reply) for one in read_row(row, stream, 0, sys.maxsize)]
    if not last or not last[-1].event_id:
        return 0  # empty, or damaged: the verification names it
    control: dict[str, ControlValue] = {
        "sequence": str(last[-1].sequence),
        "at": str(orjson.loads(last[-1].data)["timestamp"]),
    }
    return await nodes.run(_COMPLETE, stream.shard, [keys.head(stream)], control)
