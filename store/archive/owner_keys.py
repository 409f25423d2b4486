"""Data keys: one for each owner with archived sessions, stored only in the owner's shard.

A key is created when the first session of its owner is archived, and is stored sealed with the secret key of the
runtime; without a secret key it is stored in plain form, like all other engine data. Deleting a key makes everything
sealed with it unreadable.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections import OrderedDict
from dataclasses import dataclass, field
from time import monotonic
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from passerelle.core.errors import ArchiveDamaged, ConfigInvalid
from passerelle.core.ids import Shard, read_shard, shard_of
from passerelle.store import keys
from passerelle.store.archive.sealed_frame import KEY_BYTES, KeyName, OwnerKey
from passerelle.store.connection import pack
from passerelle.store.replies import as_bytes, as_hash, as_text
from passerelle.store.scripts import Script

if TYPE_CHECKING:
    from collections.abc import Iterable

    from passerelle.store.lua_script import ControlValue
    from passerelle.store.nodes import Nodes

FRESH_S: Final = 10.0
"""How long an instance reads with a key without checking it again."""
_MOST_KEYS: Final = 1024
_BARE: Final = b"0."
"""Prefix of an unsealed key."""
_HOME: Final = Shard(0)
_TAGS: Final = "tags"
"""In place of an owner: the key of the tags, which is never forgotten."""
_TAG_DIGITS: Final = 32
_KEEP: Final = Script("keep_owner_key", as_text)


class KeySealer(Protocol):
    """Seals stored values with the secret key of the runtime (``runtime.common.sealer``)."""

    def seal(self, plain: bytes, place: str) -> bytes:
        """The sealed form of a value stored at ``place``."""
        ...

    def unseal(self, sealed: bytes, place: str) -> bytes:
        """The value that was sealed for ``place``. Raises ConfigInvalid."""
        ...

    def is_current(self, sealed: bytes) -> bool:
        """Whether a value is sealed with the newest key."""
        ...


class _Known(NamedTuple):
    key: OwnerKey
    read_s: float
    """When it was read from the store, on the monotonic clock."""


@dataclass(slots=True)
class OwnerKeys:
    """The keys of one runtime. An instance caches 1,024 of them, for ``FRESH_S``."""

    nodes: Nodes
    sealer: KeySealer | None
    runtime_id: str = ""
    _known: OrderedDict[KeyName, _Known] = field(default_factory=OrderedDict["KeyName", "_Known"])

    async def obtain(self, owner: str) -> OwnerKey:
        """The key for sealing sessions of an owner from now on; the first call creates it.

        It is read in each call. So data sealed with a key that is gone meanwhile was written before that.

        Raises:
            ArchiveDamaged: it cannot be unsealed.
            StoreUnavailable: the engine does not answer.
        """
        return await self._obtain(shard_of(owner), owner)

    async def prepare(self) -> None:
        """Creates the key of tags if there is none yet.

        A tombstone is found by it, so a store restored from before the tombstone must have it already.

        Raises:
            StoreUnavailable: the engine does not answer.
        """
        command = pack("HGET", keys.owner_keys(_HOME), _TAGS)
        [named] = await self.nodes.query_all(_HOME, command)
        if named is None:
            name, plain = KeyName.draw(_HOME), AESGCM.generate_key(KEY_BYTES * 8)
            await self._keep(name, self._seal(name, plain), owner=_TAGS)

    async def tag(self, owner: str) -> str:
        """A keyed hash in place of an owner id that must not be stored. Raises as ``obtain`` does."""
        [tag] = await self.tag_all([owner])
        return tag

    async def tag_all(self, names: Iterable[str]) -> list[str]:
        """The same for several names, which may be sessions as well. Raises as ``obtain`` does."""
        key = await self._obtain(_HOME, _TAGS)
        hashes = (hmac.new(key.secret, name.encode(), hashlib.sha256) for name in names)
        return [one.hexdigest()[:_TAG_DIGITS] for one in hashes]

    async def find_name(self, owner: str) -> KeyName | None:
        """The name of the key with which sessions of an owner are sealed; None if it has none."""
        shard = shard_of(owner)
        [named] = await self.nodes.query_all(shard, pack("HGET", keys.owner_keys(shard), owner))
        return None if named is None else KeyName(shard, bytes.fromhex(as_text(named)))

    async def delete(self, name: KeyName) -> None:
        """Deletes a key: everything sealed with it is lost. Raises StoreUnavailable."""
        self._known.pop(name, None)
        await self.nodes.update(
            name.shard, pack("HDEL", keys.owner_keys(name.shard), name.id.hex())
        )

    async def list_owners(self, shard: Shard) -> set[str]:
        """The owners with a key in a shard."""
        found = await self.nodes.query(shard, pack("HGETALL", keys.owner_keys(shard)), as_hash)
        return {name for name in found if read_shard(name) == shard}

    async def find_owner(self, key: KeyName) -> str | None:
        """The owner of a key; None if it has none."""
        shard, wanted = key.shard, key.id.hex().encode()
        found = await self.nodes.query(shard, pack("HGETALL", keys.owner_keys(shard)), as_hash)
        return next((name for name, named in found.items() if named == wanted), None)

    async def _obtain(self, shard: Shard, owner: str) -> OwnerKey:
        [named] = await self.nodes.query_all(shard, pack("HGET", keys.owner_keys(shard), owner))
        if named is None:
            return await self._make(shard, owner)
        name = KeyName(shard, bytes.fromhex(as_text(named)))
        known = self._known.get(name)
        return await self._read(name) if known is None else known.key

    async def find(self, name: KeyName) -> OwnerKey | None:
        """The key with a name; None if its owner is forgotten.

        Raises:
            ArchiveDamaged: it is gone, or cannot be unsealed.
            StoreUnavailable: the engine does not answer.
        """
        known = self._known.get(name)
        if known is not None and monotonic() - known.read_s < FRESH_S:
            self._known.move_to_end(name)
            return known.key
        if await self._is_forgotten(name):
            self._known.pop(name, None)
            return None
        return await self._read(name)

    async def recall(self, name: KeyName) -> OwnerKey | None:
        """The key with a name, also of a forgotten owner; None if it is gone. Raises as ``find`` does."""
        [stored] = await self.nodes.query_all(name.shard, _ask_key(name))
        return None if stored is None else await self._read(name)

    async def _is_forgotten(self, name: KeyName) -> bool:
        command = pack("HGET", keys.tombstones(name.shard), name.id.hex())
        return await self.nodes.query(name.shard, command, as_bytes) is not None

    async def _read(self, name: KeyName) -> OwnerKey:
        asked_s = monotonic()
        stored = await self.nodes.query(name.shard, _ask_key(name), as_bytes)
        if stored is None:
            self._known.pop(name, None)
            reason = f"data key {name.text} of the archive is gone"
            raise ArchiveDamaged(reason)
        plain = self._unseal(name, stored)
        if self.sealer is not None and not self.sealer.is_current(stored):
            await self._keep(name, self._seal(name, plain), before=stored)
        return self._remember(OwnerKey.of(name, plain), asked_s)

    async def _make(self, shard: Shard, owner: str) -> OwnerKey:
        name, plain = KeyName.draw(shard), AESGCM.generate_key(KEY_BYTES * 8)
        asked_s = monotonic()
        kept = await self._keep(name, self._seal(name, plain), owner=owner)
        if kept != name.id.hex():
            return await self._read(name._replace(id=bytes.fromhex(kept)))
        return self._remember(OwnerKey.of(name, plain), asked_s)

    async def _keep(
        self, name: KeyName, sealed: bytes, *, owner: str = "", before: bytes = b""
    ) -> str:
        control: dict[str, ControlValue] = {
            "owner": owner,
            "id": name.id.hex(),
            "key": sealed.decode(),
            "before": before.decode(),
        }
        return await self.nodes.run(_KEEP, name.shard, [keys.owner_keys(name.shard)], control)

    def _remember(self, key: OwnerKey, read_s: float) -> OwnerKey:
        self._known[key.name] = _Known(key, read_s)
        self._known.move_to_end(key.name)
        if len(self._known) > _MOST_KEYS:
            self._known.popitem(last=False)
        return key

    def _seal(self, name: KeyName, plain: bytes) -> bytes:
        if self.sealer is None:
            return _BARE + base64.urlsafe_b64encode(plain)
        return self.sealer.seal(plain, self._name_place(name))

    def _unseal(self, name: KeyName, stored: bytes) -> bytes:
        try:
            if stored.startswith(_BARE):
                plain = base64.urlsafe_b64decode(stored.removeprefix(_BARE))
            elif self.sealer is None:
                raise ConfigInvalid("secret_key", "is not given, and the key is sealed with it")
            else:
                plain = self.sealer.unseal(stored, self._name_place(name))
        except (ConfigInvalid, ValueError) as error:
            reason = f"data key {name.text} of the archive cannot be opened: {error}"
            raise ArchiveDamaged(reason) from None
        if len(plain) != KEY_BYTES:
            reason = f"data key {name.text} of the archive is damaged"
            raise ArchiveDamaged(reason)
        return plain

    def _name_place(self, name: KeyName) -> str:
        return f"archive key {self.runtime_id} {name.text}"


def _ask_key(name: KeyName) -> bytes:
    return pack("HGET", keys.owner_keys(name.shard), name.id.hex())
