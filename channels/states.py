"""Read models of streams with their cursors, built once for concurrent requests, and cached for a moment.

Cursor first, state second: an event stored in between appears twice, and is never lost. A state is cached under the
cursor that was read before it, so a later reader that follows from there misses no event either.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from dataclasses import replace
from typing import TYPE_CHECKING, Final, TypeAlias

import orjson

from passerelle.channels.cursor_check import end_of
from passerelle.core.frozen import frozen
from passerelle.protocol.cursor import Cursor

if TYPE_CHECKING:
    from passerelle.channels.follower import StreamReads
    from passerelle.channels.services import Snapshots, StreamGrant, StreamName
    from passerelle.channels.views import View
    from passerelle.core.ports.log import StreamRef
    from passerelle.core.principal import Principal
    from passerelle.core.wire.json import JsonObject

    _Key: TypeAlias = tuple[Principal, StreamRef, View, Cursor]

KEEP_S: Final = 10.0
_KEPT_BYTES: Final = 33_554_432


@frozen
class ReadModelState:
    """A read model as of a cursor, and its size on the wire."""

    cursor: Cursor
    data: JsonObject
    size_bytes: int


class States:
    """Builds and caches read models for one instance. All methods run in one event loop."""

    def __init__(self, log: StreamReads, snapshots: Snapshots, keep_s: float = KEEP_S) -> None:
        self._log = log
        self._snapshots = snapshots
        self._keep_s = keep_s
        self._builds: OrderedDict[_Key, asyncio.Task[ReadModelState]] = OrderedDict()
        self.built = 0
        """Number of builds; other requests shared one."""

    async def read(
        self, principal: Principal, name: StreamName, grant: StreamGrant
    ) -> ReadModelState | None:
        """The state of a stream that the principal may follow; None if the stream is gone.

        Raises:
            StoreUnavailable: it cannot be read.
        """
        head = await self._log.read_head(grant.stream)
        if head is None:
            return None
        cursor = end_of(head)
        key = (_cache_identity(principal, name), grant.stream, grant.view, cursor)
        build = self._builds.get(key)
        if build is None:
            build = asyncio.create_task(self._build(principal, name, grant, cursor))
            self._builds[key] = build
            build.add_done_callback(lambda done: self._keep(key, done))
        return await asyncio.shield(build)

    async def _build(
        self, principal: Principal, name: StreamName, grant: StreamGrant, cursor: Cursor
    ) -> ReadModelState:
        self.built += 1
        state = await self._snapshots.read_snapshot(principal, name, grant)
        data: JsonObject = {**state, "asOf": str(cursor)}
        return ReadModelState(cursor, data, len(orjson.dumps(data)))

    def _keep(self, key: _Key, done: asyncio.Task[ReadModelState]) -> None:
        if done.cancelled() or done.exception() is not None:
            self._builds.pop(key, None)
            return
        asyncio.get_running_loop().call_later(self._keep_s, self._forget, key, done)
        while len(self._builds) > 1 and self._count_bytes() > _KEPT_BYTES:
            self._builds.popitem(last=False)

    def _forget(self, key: _Key, done: asyncio.Task[ReadModelState]) -> None:
        if self._builds.get(key) is done:
            del self._builds[key]

    def _count_bytes(self) -> int:
        return sum(
            build.result().size_bytes
            for build in self._builds.values()
            if build.done() and not build.cancelled() and build.exception() is None
        )


def _cache_identity(principal: Principal, name: StreamName) -> Principal:
    """The cache identity: all devices of a principal with the same rights. An inbox may depend on the device."""
    if name.word == "inbox":
        return principal
    return replace(principal, device=None, device_name=None, paired=False)
