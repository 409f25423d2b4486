"""Blobs in a folder and in a bucket: one suite for both, and a gateway with its content in a bucket.

The bucket belongs to an independent S3 server, which runs in a separate environment.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Generator
from pathlib import Path
from typing import Final, cast

import httpx
import obstore
import pytest
from obstore.store import MemoryStore, S3Store

from passerelle.core.errors import ConfigInvalid, StoreUnavailable
from passerelle.core.ids import Shard, shard_of
from passerelle.core.task.status import Status
from passerelle.store.blobs import BlobStore, BlobStores, open_blobs
from tests.interop.environments import S3, require
from tests.support.engine import (
    Server,
    end_process,
    engine_server,
    start_process,
    started_legs,
)
from tests.support.harness import open_harness
from tests.support.ports import find_free_port
from tests.support.waiting import wait_until

__all__ = ["engine_server", "started_legs"]
pytestmark = pytest.mark.anyio

HERE: Final = Shard(5)
CONTENT: Final = bytes(range(256)) * 4096
_LATER_MS: Final = 4_000_000_000_000


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module")
def server() -> Generator[str]:
    """The URL of the server."""
    require(S3)
    # Its threads are started once per process, and must not count as leaks of the first test.
    obstore.put(MemoryStore(), "first", b"")
    port = find_free_port()
    python = str(S3 / ".venv/bin/python")
    process = start_process([python, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)])
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        end_process(process)


@pytest.fixture
async def bucket(server: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """An empty bucket, and the environment with its credentials."""

    def make() -> bool:
        try:
            return httpx.put(f"{server}/blobs", timeout=5).is_success
        except httpx.TransportError:
            return False

    await wait_until(make, 20, "the server has made the bucket")
    for name, given in {
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": server,
    }.items():
        monkeypatch.setenv(name, given)
    return "s3://blobs/passerelle"


@pytest.fixture(params=["folder", "bucket"])
async def where(request: pytest.FixtureRequest, tmp_path: Path, bucket: str) -> Path | str:
    """The location of the content."""
    return bucket if cast("str", request.param) == "bucket" else tmp_path / "blobs"


@pytest.fixture
def blobs(where: Path | str) -> BlobStore:
    return open_blobs(where)


async def test_location_is_probed_and_left_unchanged(blobs: BlobStore) -> None:
    await blobs.probe()
    await blobs.probe()


async def test_content_is_read_by_its_hash_and_in_its_shard_only(blobs: BlobStore) -> None:
    name = await blobs.put(HERE, CONTENT)
    assert name == hashlib.sha256(CONTENT).hexdigest()
    assert await blobs.get(HERE, name) == CONTENT
    assert await blobs.get(Shard(6), name) is None
    assert await blobs.put(HERE, CONTENT) == name


async def test_content_is_measured_read_in_parts_and_replaced_under_its_name(
    blobs: BlobStore,
) -> None:
    name = await blobs.put(HERE, CONTENT)
    assert await blobs.measure(HERE, name) == len(CONTENT)
    assert await blobs.measure(Shard(6), name) is None
    for start, size in ((0, 7), (len(CONTENT) - 3, 3), (len(CONTENT) - 3, 99)):
        assert await blobs.read(HERE, name, start, size) == CONTENT[start : start + size]
    for start in (len(CONTENT), len(CONTENT) + 5):
        assert await blobs.read(HERE, name, start, 1) == b""
    assert await blobs.read(HERE, "0" * 64, 0, 1) is None
    other = bytes(len(CONTENT))
    await blobs.replace(HERE, name, other)
    assert await blobs.read(HERE, name, 0, len(CONTENT)) == other
    with pytest.raises(StoreUnavailable, match="damaged"):
        await blobs.get(HERE, name)


@pytest.mark.parametrize("name", ["", "00", "x" * 64, "../" * 20 + "etco"])
async def test_name_that_is_no_hash_finds_nothing(blobs: BlobStore, name: str) -> None:
    assert await blobs.get(HERE, name) is None


async def test_missing_content_is_not_an_error(blobs: BlobStore) -> None:
    assert await blobs.get(HERE, "0" * 64) is None


@pytest.mark.requirement("EXT-10")
async def test_copy_expires_a_while_after_its_last_put(where: Path | str) -> None:
    copies, blobs = BlobStores.open(where).copies, open_blobs(where)
    name = await copies.put(HERE, b"a file")
    assert await blobs.get(HERE, name) is None
    assert not await copies.expire(HERE, name, before_ms=1)
    assert await copies.get(HERE, name) == b"a file"
    assert await copies.expire(HERE, name, before_ms=_LATER_MS)
    assert await copies.get(HERE, name) is None
    assert await copies.expire(HERE, name, before_ms=_LATER_MS)


async def test_content_of_a_shard_is_listed_by_its_hashes(where: Path | str) -> None:
    tombstones, shard = BlobStores.open(where).tombstones, Shard(17)
    assert await tombstones.list_digests(shard) == []
    names = {await tombstones.put(shard, b"%d" % number) for number in range(70)}
    await tombstones.put(Shard(18), b"elsewhere")
    await open_blobs(where).put(shard, b"content")
    assert sorted(await tombstones.list_digests(shard)) == sorted(names)
    for name in names:
        assert await tombstones.expire(shard, name, before_ms=_LATER_MS)
    assert await tombstones.list_digests(shard) == []


async def test_damaged_content_is_never_returned(bucket: str) -> None:
    blobs = open_blobs(bucket)
    name = await blobs.put(HERE, b"whole")
    path = f"{HERE.tag}/{name[:2]}/{name}"
    await obstore.put_async(
        S3Store.from_url(bucket, client_options={"allow_http": True}), path, b"?"
    )
    with pytest.raises(StoreUnavailable, match="damaged"):
        await blobs.get(HERE, name)


async def test_missing_bucket_is_a_configuration_error(bucket: str) -> None:
    with pytest.raises(ConfigInvalid, match="blobs"):
        await open_blobs(f"{bucket.replace('blobs', 'nobody')}").probe()


async def test_unreachable_server_is_reported_without_secrets(
    bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{find_free_port()}")
    with pytest.raises(StoreUnavailable) as caught:
        await open_blobs(bucket).put(HERE, b"x")
    assert caught.value.wrote == "no"
    assert os.environ["AWS_SECRET_ACCESS_KEY"] not in str(caught.value)


async def test_content_of_a_task_is_stored_in_the_bucket(
    engine_server: Server, bucket: str
) -> None:
    async with open_harness(engine_server.url, bucket) as harness:
        accepted, _ = await harness.talk("big")
        record = await harness.until(accepted, Status.COMPLETED)
        (artifact,) = record.artifacts
        assert artifact.blob is not None
        content = await open_blobs(bucket).get(shard_of(accepted.task_id), artifact.blob)
        assert content is not None
        assert hashlib.sha256(content).hexdigest() == artifact.blob
        assert "x" * 1000 in str(await harness.read(accepted))
