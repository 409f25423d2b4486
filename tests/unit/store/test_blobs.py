"""Blobs: whole or absent, named by their content."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from passerelle.core.errors import ConfigInvalid, StoreUnavailable
from passerelle.core.ids import Shard
from passerelle.store.blobs import DirectoryBlobs

pytestmark = pytest.mark.anyio

HERE = Shard(5)


@pytest.fixture
def blobs(tmp_path: Path) -> DirectoryBlobs:
    return DirectoryBlobs(tmp_path / "blobs")


def files(blobs: DirectoryBlobs) -> list[Path]:
    return [path for path in blobs.root.rglob("*") if path.is_file()]


async def test_content_comes_back_by_its_hash(blobs: DirectoryBlobs) -> None:
    content = bytes(range(256)) * 4096
    name = await blobs.put(HERE, content)
    assert name == hashlib.sha256(content).hexdigest()
    assert await blobs.get(HERE, name) == content
    assert await blobs.get(Shard(6), name) is None


async def test_same_content_is_one_file(blobs: DirectoryBlobs) -> None:
    assert await blobs.put(HERE, b"x") == await blobs.put(HERE, b"x")
    (only,) = files(blobs)
    assert only.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("name", ["", "ab", "../" * 20, "G" * 64, "../../../etc/passwd" + "a" * 45])
async def test_name_that_is_no_hash_finds_nothing(blobs: DirectoryBlobs, name: str) -> None:
    assert await blobs.get(HERE, name) is None


async def test_damaged_blob_is_not_served(blobs: DirectoryBlobs) -> None:
    name = await blobs.put(HERE, b"content")
    files(blobs)[0].write_bytes(b"cont")
    with pytest.raises(StoreUnavailable, match="damaged"):
        await blobs.get(HERE, name)


async def test_directory_that_cannot_be_written_is_an_error_without_a_trace(
    tmp_path: Path,
) -> None:
    taken = tmp_path / "taken"
    taken.write_bytes(b"")
    blobs = DirectoryBlobs(taken)
    with pytest.raises(StoreUnavailable) as caught:
        await blobs.put(HERE, b"x")
    assert caught.value.wrote == "no"
    with pytest.raises(ConfigInvalid, match="blobs"):
        await blobs.probe()


async def test_probe_leaves_nothing_behind(blobs: DirectoryBlobs) -> None:
    await blobs.probe()
    assert files(blobs) == []
