"""Copies of files in their directory: the latest put decides how long one stays."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from passerelle.core.ids import Shard
from passerelle.store.blobs import DirectoryBlobs

pytestmark = pytest.mark.anyio

HERE = Shard(3)
FILE = b"a file"


def date(root: Path, at_s: int) -> None:
    """Sets the age of every file."""
    for path in root.rglob("*"):
        if path.is_file():
            os.utime(path, (at_s, at_s))


@pytest.mark.requirement("EXT-10")
async def test_old_copy_is_removed_and_a_second_time_too(tmp_path: Path) -> None:
    copies = DirectoryBlobs(tmp_path)
    digest = await copies.put(HERE, FILE)
    date(tmp_path, 1_000)
    assert not await copies.expire(HERE, digest, before_ms=999_000)
    assert await copies.get(HERE, digest) == FILE
    assert await copies.expire(HERE, digest, before_ms=1_001_000)
    assert await copies.get(HERE, digest) is None
    assert await copies.expire(HERE, digest, before_ms=1_001_000)


async def test_copy_that_was_put_again_stays(tmp_path: Path) -> None:
    copies = DirectoryBlobs(tmp_path)
    digest = await copies.put(HERE, FILE)
    date(tmp_path, 1_000)
    await copies.put(HERE, FILE)
    assert not await copies.expire(HERE, digest, before_ms=1_001_000)
    assert await copies.get(HERE, digest) == FILE
