"""An owner's data outside of conversations: home session, devices and their links, grants, rules, inbox.

All of it is in the owner's shard, so that one script removes it at once. Some of it is found by the owner key. For the
rest the principal is needed: the key is a hash that cannot be reversed, so it is read from sessions and device list.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, cast

import orjson

from passerelle.core.batch import EntityKind, EntityRef
from passerelle.core.frozen import frozen
from passerelle.core.ids import shard_of
from passerelle.core.ports.log import StreamKind, StreamRef
from passerelle.core.session.device import name_list
from passerelle.core.wire.times import parse_ms
from passerelle.store import keys
from passerelle.store.archive.frame import find_principal
from passerelle.store.connection import pack
from passerelle.store.key_scan import scan_keys
from passerelle.store.replies import as_bytes, as_int, as_sparse_list
from passerelle.store.scripts import Script

if TYPE_CHECKING:
    from passerelle.core.ids import Shard
    from passerelle.core.principal import Principal
    from passerelle.store.nodes import Nodes

_NOTHING: Final[Mapping[str, Any]] = {}
_FORGET_HOME: Final = Script("forget_home", as_int)


@frozen
class OwnerHome:
    """What was found. ``session`` is None if no record names the principal: then it has no home, devices or grants.

    ``epoch`` is that of the home session, empty if the engine has none; ``present_keys`` are the other existing keys.
    """

    owner: str
    session: str | None
    epoch: str
    present_keys: tuple[str, ...]
    ids: frozenset[str]
    """Ids of the home session, of devices, their links, and grants."""
    devices: int
    grants: int
    rules: int
    bytes: int

    @property
    def shard(self) -> Shard:
        """The shard of all of it."""
        return shard_of(self.owner)

    @property
    def stream(self) -> StreamRef:
        """The stream of the home session; an impossible one if there is no home session."""
        return StreamRef(StreamKind.SESSION, self.session or self.owner)


@dataclass(slots=True)
class _OwnerScan:
    """What a scan of a shard has found for one owner."""

    whose: Principal | None = None
    links: list[str] = field(default_factory=list[str])


@frozen
class HomeFinder:
    """Scans the shard of an owner. All raise StoreUnavailable."""

    nodes: Nodes

    async def find(self, owner: str, before_ms: int) -> OwnerHome | None:
        """An owner's data; None if there is none, or it began after ``before_ms``: the owner has returned."""
        scan = await self._scan_shard(owner)
        shard, inbox = shard_of(owner), StreamRef(StreamKind.INBOX, owner)
        noted = StreamRef(StreamKind.TASKS, owner)
        session = None if scan.whose is None else scan.whose.home_session
        stream = StreamRef(StreamKind.SESSION, session or owner)
        devices = [] if scan.whose is None else [_ref(EntityKind.DEVICES, name_list(scan.whose))]
        given = (
            [_ref(kind, session) for kind in (EntityKind.GRANTS, EntityKind.RULES)]
            if session
            else []
        )
        candidates = [
            *(keys.entity(ref) for ref in (*devices, *given)),
            *(keys.entries(stream), keys.session_tasks(shard, stream.id), keys.stream_acks(stream)),
            *(keys.entries(inbox), keys.head(inbox), keys.stream_acks(inbox)),
            keys.stream_targets(inbox),
            *(keys.entries(noted), keys.head(noted)),
            *(keys.links(shard, owner), keys.presence(shard, owner)),
            *(keys.pushes(shard, owner), keys.held(shard, owner), keys.mutes(shard, owner)),
            *(keys.channel(shard, name) for name in scan.links),
        ]
        head, *there = await self.nodes.query_in_background(
            shard,
            pack("HMGET", keys.head(stream), "epoch", "bytes", "s"),
            *(pack("EXISTS", name) for name in candidates),
        )
        epoch, size, record = as_sparse_list(head)
        held = [await self._read(ref) for ref in (*devices, *given)]
        listed, grants, rules = held or (_NOTHING,) * 3
        since = _read(record).get("createdAt") if epoch else listed.get("updatedAt")
        if isinstance(since, str) and parse_ms(since) > before_ms:
            return None
        present = tuple(
            name for name, count in zip(candidates, there, strict=True) if as_int(count)
        )
        if not epoch and not present:
            return None
        own_devices, own_grants = listed.get("devices") or (), grants.get("grants") or ()
        named = chain(
            (ref.id for ref in (*devices, *given)),
            (str(one.get("deviceId")) for one in own_devices),
            (str(one.get("grantId")) for one in own_grants),
            scan.links,
        )
        return OwnerHome(
            owner,
            session,
            (epoch or b"").decode(),
            present,
            frozenset(named),
            len(own_devices),
            len(own_grants),
            len(rules.get("rules") or ()),
            int(size or 0),
        )

    async def remove(self, home: OwnerHome) -> bool:
        """Removes all of it at once, and notifies connected devices; False if another home has begun meanwhile.

        Raises:
            StoreUnavailable: the outcome is unknown.
        """
        shard, owner = home.shard, home.owner
        names = [
            keys.head(home.stream),
            keys.session_open(shard, home.stream.id),
            keys.stream_targets(home.stream),
            keys.stream_targets(StreamRef(StreamKind.INBOX, owner)),
            keys.due(shard),
            keys.stuck(shard),
            keys.link_hints(shard, owner),
            keys.rule_hints(shard, home.stream.id),
            *home.present_keys,
        ]
        control = {"session": home.stream.id, "owner": owner, "epoch": home.epoch}
        return bool(await self.nodes.run(_FORGET_HOME, shard, names, control))

    async def _scan_shard(self, owner: str) -> _OwnerScan:
        """The principal of an owner, and the links of its devices, including those not among the newest."""
        shard, found = shard_of(owner), _OwnerScan()
        async for names in scan_keys(self.nodes.node(shard), keys.every_key_of(shard)):
            named_keys = [
                (kind, name, key.decode())
                for key in names
                for kind, name in (keys.read_parts(key.decode()),)
                if kind in _LOOKED_AT
            ]
            asked = (pack("HGET", key, "s") for _, _, key in named_keys)
            replies = await self.nodes.query_in_background(shard, *asked)
            for (kind, name, _), reply in zip(named_keys, replies, strict=True):
                record = as_bytes(reply) or b""
                if kind == _LINK:
                    found.links += [name] if _read(record).get("accountRef") == owner else []
                    continue
                whose = find_principal(record)
                found.whose = whose if whose is not None and whose.key == owner else found.whose
        found.links = [*dict.fromkeys(found.links)]
        return found

    async def _read(self, ref: EntityRef) -> Mapping[str, Any]:
        [reply] = await self.nodes.query_in_background(
            ref.shard, pack("HGET", keys.entity(ref), "s")
        )
        return _read(as_bytes(reply))


_LINK: Final = "c"
_LOOKED_AT: Final = frozenset({"s", "dv", _LINK})
"""Prefixes of keys whose records name an owner, or its principal."""


def _ref(kind: EntityKind, name: str) -> EntityRef:
    return EntityRef(kind, name)


def _read(record: bytes | None) -> Mapping[str, Any]:
    """The members of a record; empty for a damaged one, which ``passerelle verify`` reports."""
    try:
        said: object = orjson.loads(record or b"{}")
    except ValueError:
        return _NOTHING
    return cast("Mapping[str, Any]", said) if isinstance(said, dict) else _NOTHING
