"""The streams of list changes: one per owner, and one for all owners of a tenant; each starts with its first follower.

The changes of an owner are noted in the call that carries them to its lists. Those of a tenant come from all shards:
the reply to such a call names the followed tenants, and the caller that carried the rows notes them.
"""

from __future__ import annotations

import asyncio
import secrets
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from passerelle.core.ids import ALL_SHARDS
from passerelle.core.packed_events import pack_copy
from passerelle.core.ports.log import StreamKind, StreamRef
from passerelle.core.principal import is_tenant_key
from passerelle.store import keys
from passerelle.store.connection import pack
from passerelle.store.replies import as_int, as_text
from passerelle.store.scripts import Script

if TYPE_CHECKING:
    from collections.abc import Sequence

    from passerelle.core.events import EncodedEvent
    from passerelle.store.append import Arguments
    from passerelle.store.lua_script import ControlValue
    from passerelle.store.nodes import Nodes

_OPEN_ROWS: Final = Script("open_rows", as_text)
WATCH_LISTS: Final = Script("watch_lists", as_int)
_REPEAT_S: Final = 30.0


@dataclass(slots=True)
class ListNotes:
    """Starts and ends such streams. All raise StoreUnavailable if the store does not answer."""

    nodes: Nodes
    _watched: dict[str, tuple[str, float]] = field(default_factory=dict[str, tuple[str, float]])
    """The stream epoch of each tenant that this process has announced to every shard, and when."""

    async def open(self, owner: str, now_ms: int) -> str:
        """Notes the changes of these lists from now on, once the carrying caller knows; returns the epoch."""
        stream = _name_stream(owner)
        control: dict[str, ControlValue] = {"mint": secrets.token_hex(4), "at": str(now_ms)}
        return await self.nodes.run(_OPEN_ROWS, stream.shard, [keys.head(stream)], control)

    async def watch(self, tenant: str, now_ms: int) -> None:
        """The same for the lists of every owner of a tenant: once it returns, each shard knows."""
        epoch = await self.open(tenant, now_ms)
        now_s = asyncio.get_running_loop().time()
        known, since_s = self._watched.get(tenant, ("", 0.0))
        if known != epoch or now_s - since_s > _REPEAT_S:
            await self._announce(tenant, epoch, is_over=False)
            self._watched[tenant] = epoch, now_s

    async def restart(self, tenant: str) -> None:
        """Restarts the stream of a tenant under a new epoch, because notes of the one before were lost."""
        stream = _name_stream(tenant)
        followed = pack("HGET", keys.head(stream), "followed")
        [since] = await self.nodes.query_all(stream.shard, followed)
        await self._drop(stream)
        if isinstance(since, bytes):
            await self._announce(tenant, await self.open(tenant, int(since)), is_over=False)

    async def end(self, owner: str, epoch: str) -> None:
        """Ends the stream that had this epoch: it has no followers."""
        stream = _name_stream(owner)
        await self._drop(stream)
        if is_tenant_key(owner):
            await self._announce(owner, epoch, is_over=True)

    async def _drop(self, stream: StreamRef) -> None:
        ended = pack("UNLINK", keys.head(stream), keys.entries(stream))
        await self.nodes.update(stream.shard, ended)

    async def _announce(self, tenant: str, epoch: str, *, is_over: bool) -> None:
        control: dict[str, ControlValue] = {"tenant": tenant, "epoch": epoch, "is_over": is_over}
        await asyncio.gather(
            *(
                self.nodes.run(WATCH_LISTS, shard, [keys.meta(shard)], control)
                for shard in ALL_SHARDS
            )
        )


def read_watched(text: str) -> tuple[str, ...]:
    """The keys of the tenants that a shard lists as followed."""
    return tuple([one.partition("=")[0] for one in text.split()])


def pack_notes(owner: str, notes: Sequence[EncodedEvent], arguments: Arguments) -> ControlValue:
    """Notes in the form of ``advance_projection``."""
    head, entries, hints = map(arguments.key, _name_keys(owner))
    return {
        # It has no receivers and no open entities, and is never created here.
        "keys": [head, entries, head, head, hints, head],
        "mint": "",
        "events": [[note.event_id, arguments.value(pack_copy(note))] for note in notes],
    }


def _name_stream(owner: str) -> StreamRef:
    return StreamRef(StreamKind.TASKS, owner)


@lru_cache(4096)
def _name_keys(owner: str) -> tuple[str, str, str]:
    """Head, entries and hints of the notes of an owner's lists."""
    stream = _name_stream(owner)
    return keys.head(stream), keys.entries(stream), keys.stream_hints(stream)
