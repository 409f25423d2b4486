"""Tombstones of forgotten owners, and legal holds, which prevent forgetting.

A tombstone is stored in the owner's shard and as an object with the archive, so that data restored by a failover or a
backup is forgotten again. It names the data key, which is random, and has no content, no digest of any, and a keyed
hash of the owner. While forgetting is in progress, the row in the engine names the owner as well.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, cast

import orjson

from passerelle.core.frozen import frozen
from passerelle.core.ids import ALL_SHARDS, Shard, shard_of
from passerelle.core.wire.times import format_ms, parse_ms
from passerelle.store import keys
from passerelle.store.archive.sealed_frame import KeyName
from passerelle.store.connection import pack
from passerelle.store.replies import as_bytes, as_hash, as_text
from passerelle.store.scripts import Script

if TYPE_CHECKING:
    from passerelle.store.blobs import BlobStore
    from passerelle.store.connection import RespValue
    from passerelle.store.lua_script import ControlValue
    from passerelle.store.nodes import Nodes

BeginOutcome: TypeAlias = Literal["begun", "held", "changed"]
"""``changed``: the owner has another key now."""
_HOME: Final = Shard(0)


def _read_outcome(reply: RespValue) -> BeginOutcome:
    return cast("BeginOutcome", as_text(reply))


_BEGIN: Final = Script("begin_forgetting", _read_outcome)
_END: Final = Script("end_forgetting", lambda _reply: None)
_HOLD: Final = Script("hold_owner", as_text)


@frozen
class ForgottenCounts:
    """Totals of what was forgotten. ``archived`` counts the sessions that were in the archive; bytes are as stored."""

    sessions: int = 0
    archived: int = 0
    tasks: int = 0
    approvals: int = 0
    bytes: int = 0
    devices: int = 0
    grants: int = 0
    rules: int = 0


@frozen
class Tombstone:
    """States that everything sealed with a data key, and its owner's data from before ``at_ms``, is forgotten.

    ``owner`` is empty once nothing of it is left, and in the archived object.
    """

    key: KeyName
    owner_tag: str
    at_ms: int
    by: str
    counts: ForgottenCounts = field(default_factory=ForgottenCounts)
    owner: str = ""

    def write(self, runtime_id: str) -> bytes:
        """The stored form, the same bytes for the same tombstone."""
        counts = self.counts
        words: dict[str, object] = {
            "runtimeId": runtime_id,
            "key": self.key.text,
            "ownerTag": self.owner_tag,
            "at": format_ms(self.at_ms),
            "by": self.by,
            "sessions": counts.sessions,
            "archived": counts.archived,
            "tasks": counts.tasks,
            "approvals": counts.approvals,
            "bytes": counts.bytes,
            "devices": counts.devices,
            "grants": counts.grants,
            "rules": counts.rules,
        }
        return orjson.dumps(words | ({"owner": self.owner} if self.owner else {}))


@frozen
class LegalHold:
    """Forbids forgetting anything of an owner: since when, by whom and why."""

    at_ms: int
    by: str
    reason: str


def read_tombstone(stored: bytes, runtime_id: str) -> Tombstone | None:
    """The tombstone of a stored form; None for that of another runtime, and for invalid bytes."""
    try:
        said = cast("dict[str, Any]", orjson.loads(stored))
        if said["runtimeId"] != runtime_id:
            return None
        counted = ("sessions", "archived", "tasks", "approvals", "bytes")
        # Older tombstones, from before homes were forgotten, have none of these.
        further = (int(said.get(name, 0)) for name in ("devices", "grants", "rules"))
        counts = ForgottenCounts(*(int(said[name]) for name in counted), *further)
        key, at_ms = KeyName.read(bytes.fromhex(said["key"])), parse_ms(said["at"])
        return Tombstone(
            key, str(said["ownerTag"]), at_ms, str(said["by"]), counts, str(said.get("owner", ""))
        )
    except (LookupError, TypeError, ValueError):
        return None


@dataclass(slots=True)
class Tombstones:
    """The tombstones of one runtime. ``objects`` is their storage with the archive; all raise StoreUnavailable."""

    nodes: Nodes
    objects: BlobStore
    runtime_id: str = ""

    async def begin(self, tombstone: Tombstone, *, is_again: bool = False) -> BeginOutcome:
        """Sets a tombstone, in the engine first: it checks for a legal hold.

        ``is_again``: it was set before, and a data loss has restored what it covers.
        """
        shard = tombstone.key.shard
        control: dict[str, ControlValue] = {
            "owner": tombstone.owner,
            "id": tombstone.key.id.hex(),
            "tombstone": tombstone.write(self.runtime_id).decode(),
            "is_again": int(is_again),
        }
        names = [keys.owner_keys(shard), keys.tombstones(shard), keys.holds(shard)]
        begun = await self.nodes.run(_BEGIN, shard, names, control)
        if begun == "begun":
            await self.write_object(tombstone)
        return begun

    async def write_object(self, tombstone: Tombstone) -> None:
        """Stores a tombstone with the archive."""
        await self.objects.put(_HOME, replace(tombstone, owner="").write(self.runtime_id))

    async def end(self, tombstone: Tombstone) -> None:
        """Deletes the data key, and the name of the owner from the tombstone."""
        shard = tombstone.key.shard
        control: dict[str, ControlValue] = {
            "owner": tombstone.owner,
            "id": tombstone.key.id.hex(),
            "tombstone": replace(tombstone, owner="").write(self.runtime_id).decode(),
        }
        await self.nodes.run(_END, shard, [keys.owner_keys(shard), keys.tombstones(shard)], control)

    async def list_in_engine(self, shard: Shard) -> list[Tombstone]:
        """The tombstones of the owners of a shard."""
        found = await self.nodes.query(shard, pack("HGETALL", keys.tombstones(shard)), as_hash)
        read = (read_tombstone(stored, self.runtime_id) for stored in found.values())
        return [one for one in read if one is not None]

    async def list_objects(self) -> list[Tombstone]:
        """The archived tombstones."""
        found = list[Tombstone]()
        for digest in await self.objects.list_digests(_HOME):
            stored = await self.objects.get(_HOME, digest)
            one = None if stored is None else read_tombstone(stored, self.runtime_id)
            found += [] if one is None else [one]
        return found

    async def hold(self, owner: str, hold: LegalHold) -> bool:
        """Sets a legal hold on an owner; False: forgetting is already in progress."""
        shard = shard_of(owner)
        words = {"at": format_ms(hold.at_ms), "by": hold.by, "reason": hold.reason}
        stored = orjson.dumps(words).decode()
        control: dict[str, ControlValue] = {"owner": owner, "hold": stored}
        names = [keys.holds(shard), keys.tombstones(shard)]
        if await self.nodes.run(_HOLD, shard, names, control) != "held":
            return False
        # The script that removes a session checks the holds in the shard of the session.
        for one in ALL_SHARDS:
            await self.nodes.update(one, pack("HSETNX", keys.holds(one), owner, stored))
        return True

    async def release(self, owner: str) -> None:
        """Releases a hold, if there is one; that of its own shard last, so that it counts until then."""
        shard = shard_of(owner)
        for one in (*(other for other in ALL_SHARDS if other != shard), shard):
            await self.nodes.update(one, pack("HDEL", keys.holds(one), owner))

    async def find_hold(self, owner: str) -> LegalHold | None:
        """The hold of an owner; None if there is none."""
        shard = shard_of(owner)
        stored = await self.nodes.query(shard, pack("HGET", keys.holds(shard), owner), as_bytes)
        if stored is None:
            return None
        said = cast("dict[str, str]", orjson.loads(stored))
        return LegalHold(parse_ms(said["at"]), said["by"], said["reason"])
