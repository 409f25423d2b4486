"""Archived data is sealed with the key of its owner, and becomes unreadable with its removal."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from passerelle.core.batch import Appended
from passerelle.core.errors import ArchiveDamaged
from passerelle.core.ids import Shard, shard_of
from passerelle.core.principal import Principal
from passerelle.runtime.common.sealer import make_sealer
from passerelle.store import keys
from passerelle.store.archive import owner_keys
from passerelle.store.connection import pack
from passerelle.store.replies import as_hash
from passerelle.store.store import Store, StoreSettings
from tests.contract.test_archive import Story, begin, leave, read_all
from tests.support.batches import make_place

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from passerelle.runtime.common.sealer import Sealer
    from passerelle.store.connection import RespValue
    from tests.support.engine import Server

pytestmark = pytest.mark.anyio
ADA, BOB = Principal("ada").key, Principal("bob").key
HOME = Shard(9)


def make_key_sealer(*numbers: int) -> Sealer:
    """A sealer over keys by number, the first of which seals."""
    return make_sealer([bytes([number]) * 32 for number in numbers], lambda bits: (1 << bits) - 1)


async def open_store(server: Server, tmp_path: Path, sealer: Sealer | None) -> Store:
    settings = StoreSettings(server.url, tmp_path / "blobs", sealer=sealer)
    return await Store.open(settings)


async def read_keys(store: Store, owner: str = ADA) -> dict[str, bytes]:
    """The row of an owner, and that of its key."""
    shard = shard_of(owner)
    return await store.nodes.query(shard, pack("HGETALL", keys.owner_keys(shard)), as_hash)


def find_content(folder: Path, words: bytes) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file() and words in path.read_bytes()]


async def test_each_owner_has_one_key_even_if_created_concurrently(
    store: Store, server: Server, tmp_path: Path
) -> None:
    async with await open_store(server, tmp_path, None) as second:
        both = await asyncio.gather(store.owner_keys.obtain(ADA), second.owner_keys.obtain(ADA))
        other = await store.owner_keys.obtain(BOB)
        assert both[0].name == both[1].name != other.name
        sealed = both[0].cipher.encrypt(bytes(12), b"said", b"")
        assert both[1].cipher.decrypt(bytes(12), sealed, b"") == b"said"
        found = await second.owner_keys.find(other.name)
        assert found is not None
        assert found.name == other.name
        assert await store.owner_keys.obtain(ADA) is both[0]


async def test_archived_data_is_lost_with_the_key_of_its_owner_only(
    store: Store, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine, other = (Story(make_place(HOME), owner=owner) for owner in (ADA, BOB))
    for story in (mine, other):
        await begin(store, 2, story)
    await leave(store, mine, other)
    kept = [await read_all(store, story) for story in (mine, other)]
    name = (await store.owner_keys.obtain(ADA)).name
    shard = shard_of(ADA)
    row = pack("HDEL", keys.owner_keys(shard), name.id.hex())
    await store.nodes.update(shard, row)
    async with await open_store(server, tmp_path, None) as fresh:
        with pytest.raises(ArchiveDamaged, match=f"data key {name.text} of the archive is gone"):
            await fresh.log.read_head(mine.at.stream)
        assert await read_all(fresh, other) == kept[1]
    assert await read_all(store, mine) == kept[0]  # it has requested the key within 10 s
    monkeypatch.setattr(owner_keys, "FRESH_S", 0.0)
    for _ in range(2):
        with pytest.raises(ArchiveDamaged, match="is gone"):
            await store.log.read_head(mine.at.stream)
    assert await read_all(store, other) == kept[1]


async def test_segments_contain_no_readable_session_data(store: Store, tmp_path: Path) -> None:
    story = Story()
    assert isinstance(await store.log.append(story.tell("marker-of-ada")), Appended)
    await leave(store, story)
    assert find_content(tmp_path, story.at.session.encode())
    assert find_content(tmp_path, b"marker-of-ada") == []
    assert find_content(tmp_path, b"sessionId") == []


async def test_keys_are_sealed_with_the_secret_key_and_resealed_after_its_change(
    server: Server, tmp_path: Path
) -> None:
    story = Story()
    async with await open_store(server, tmp_path, None) as bare:
        await begin(bare, 2, story)
        await leave(bare, story)
        kept = await read_all(bare, story)
        name = (await bare.owner_keys.obtain(story.owner)).name
        assert (await read_keys(bare))[name.id.hex()].startswith(b"0.")
    sealed = list[bytes]()
    for sealer in (make_key_sealer(1), make_key_sealer(2, 1), make_key_sealer(2)):
        async with await open_store(server, tmp_path, sealer) as store:
            assert await read_all(store, story) == kept
            row = (await read_keys(store))[name.id.hex()]
            assert sealer.is_current(row)
            sealed.append(row)
    assert len(set(sealed)) == 2
    for unfit in (None, make_key_sealer(1)):
        async with await open_store(server, tmp_path, unfit) as store:
            with pytest.raises(ArchiveDamaged, match=f"data key {name.text} .* secret_key"):
                await store.log.read_head(story.at.stream)
            assert (await read_keys(store))[name.id.hex()] == sealed[-1]


async def test_removed_key_is_not_resealed(
    store: Store, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = (await store.owner_keys.obtain(ADA)).name
    shard = shard_of(ADA)
    sealer = make_key_sealer(1)
    async with await open_store(server, tmp_path, sealer) as other:
        query = other.nodes.query

        async def remove_behind(
            at: Shard, command: bytes, decode: Callable[[RespValue], bytes | None]
        ) -> bytes | None:
            found = await query(at, command, decode)
            if keys.owner_keys(shard).encode() in command:
                await store.nodes.update(shard, pack("HDEL", keys.owner_keys(shard), name.id.hex()))
            return found

        monkeypatch.setattr(other.nodes, "query", remove_behind)
        await other.owner_keys.find(name)
    assert name.id.hex() not in await read_keys(store)


@pytest.mark.parametrize("row", ["", "0.", "0.!", "0.AAAA", "1.00000000.AAAA"])
async def test_invalid_key_row_is_reported(
    store: Store, row: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = (await store.owner_keys.obtain(ADA)).name
    monkeypatch.setattr(owner_keys, "FRESH_S", 0.0)
    shard = shard_of(ADA)
    await store.nodes.update(shard, pack("HSET", keys.owner_keys(shard), name.id.hex(), row))
    with pytest.raises(ArchiveDamaged, match=f"data key {name.text} of the archive"):
        await store.owner_keys.find(name)


async def test_session_without_an_owner_stays(store: Store) -> None:
    story = await begin(store, 2, Story(owner="nobody"))
    left = await store.archiver.archive(story.at.shard, [story.at.session])
    assert left.stay == [story.at.session]
