"""Content too large for a fact: in a folder, or in a bucket, whose library is loaded only if one is configured.

Content is named by its shard and its SHA-256 in hex. A file appears under its name only when it is complete and synced;
the fact that names it is written later.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import secrets
from pathlib import Path
from typing import TYPE_CHECKING, Final, ParamSpec, Protocol, Self, TypeVar

from passerelle.core.errors import ConfigInvalid, StoreUnavailable
from passerelle.core.frozen import frozen
from passerelle.core.ids import Shard
from passerelle.core.ports.blobs import Copies
from passerelle.core.wire.display import explain_error
from passerelle.store.content_failures import ContentFailures

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from passerelle.store.buckets import BucketBlobs

P = ParamSpec("P")
T = TypeVar("T")
_PROBE: Final = b"passerelle blob probe"


class DirectoryBlobs:
    """``core.ports.blobs.Blobs`` in a directory: the data directory's, or a path that all instances share."""

    def __init__(self, root: Path, failures: ContentFailures | None = None) -> None:
        self.root = root
        self._failures = failures or ContentFailures()

    async def put(self, shard: Shard, content: bytes) -> str:
        """Stores the content and returns its SHA-256 in hex; existing content is only touched.

        Raises:
            StoreUnavailable: the directory cannot take it.
        """
        digest = hashlib.sha256(content).hexdigest()
        await self.put_pieces(shard, digest, (content,))
        return digest

    async def put_pieces(self, shard: Shard, sha256: str, pieces: Iterable[bytes]) -> None:
        """Stores content with a known hash, piece by piece; ``pieces`` are consumed in another thread.

        Raises:
            StoreUnavailable: the directory cannot take it.
        """
        await self._run(self._write, shard, sha256, pieces)

    async def replace(self, shard: Shard, name: str, content: bytes) -> None:
        """Replaces the content with this name; readers get the old or the new content, never a mix.

        Raises:
            StoreUnavailable: the directory cannot take it; the old content stays.
        """
        await self._run(_write_whole, self._path(shard, name), (content,))

    async def get(self, shard: Shard, sha256: str) -> bytes | None:
        """The content, or None if it does not exist.

        Raises:
            StoreUnavailable: the file exists and cannot be read, or is damaged.
        """
        if not is_digest(sha256):
            return None
        content = await self._run(_find, self._path(shard, sha256).read_bytes)
        if content is not None and hashlib.sha256(content).hexdigest() != sha256:
            raise self._failures.note(f"blob {sha256} is damaged")
        return content

    async def read(self, shard: Shard, sha256: str, start: int, size: int) -> bytes | None:
        """At most ``size`` bytes from ``start`` on, not compared with the hash; None if it does not exist.

        Raises:
            StoreUnavailable: the file exists and cannot be read.
        """
        if not is_digest(sha256):
            return None
        return await self._run(_find, _read, self._path(shard, sha256), start, size)

    async def measure(self, shard: Shard, sha256: str) -> int | None:
        """The size of content in bytes; None if it does not exist.

        Raises:
            StoreUnavailable: the directory cannot be read.
        """
        if not is_digest(sha256):
            return None
        found = await self._run(_find, self._path(shard, sha256).stat)
        return None if found is None else found.st_size

    async def expire(self, shard: Shard, sha256: str, before_ms: int) -> bool:
        """Removes content last put before ``before_ms``; returns whether it is gone.

        Raises:
            StoreUnavailable: the directory cannot be changed.
        """
        return await self._run(self._expire, self._path(shard, sha256), before_ms)

    async def list_digests(self, shard: Shard) -> list[str]:
        """The hashes of all content of a shard.

        Raises:
            StoreUnavailable: the directory cannot be read.
        """
        return await self._run(self._list, shard)

    async def probe(self) -> None:
        """Writes, reads and deletes a blob.

        Raises:
            ConfigInvalid: the directory cannot be used.
        """
        content = _PROBE + secrets.token_bytes(8)
        try:
            digest = await self.put(Shard(0), content)
            found = await self.get(Shard(0), digest)
            await asyncio.to_thread(self._path(Shard(0), digest).unlink)
        except (StoreUnavailable, OSError) as error:
            raise ConfigInvalid("blobs", f"{self.root}: {explain_error(error)}") from error
        if found != content:
            raise ConfigInvalid("blobs", f"{self.root} does not give back what was written")

    async def _run(self, function: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T:
        """Runs a function in another thread; what the directory refuses is StoreUnavailable."""
        try:
            return await asyncio.to_thread(function, *arguments, **named)
        except OSError as error:
            raise self._failures.note(f"blob directory: {explain_error(error)}") from error

    def _path(self, shard: Shard, digest: str) -> Path:
        return self.root / shard.tag / digest[:2] / digest

    def _list(self, shard: Shard) -> list[str]:
        return [path.name for path in (self.root / shard.tag).glob("*/*") if is_digest(path.name)]

    def _expire(self, path: Path, before_ms: int) -> bool:
        try:
            if path.stat().st_mtime_ns // 1_000_000 >= before_ms:
                return False
            path.unlink()
        except FileNotFoundError:
            return True
        return True

    def _write(self, shard: Shard, digest: str, pieces: Iterable[bytes]) -> None:
        path = self._path(shard, digest)
        if path.exists():
            os.utime(path)  # otherwise another copy of the same content could expire now
            return
        _write_whole(path, pieces)


def _find(function: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T | None:
    try:
        return function(*arguments, **named)
    except FileNotFoundError:
        return None


def _write_whole(path: Path, pieces: Iterable[bytes]) -> None:
    """Writes a file atomically and synced, replacing an existing one."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    fresh = path.with_name(f"{path.name}.{secrets.token_hex(4)}.part")
    try:
        descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.writelines(pieces)
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(path)
    finally:
        fresh.unlink(missing_ok=True)
    sync_directory(path.parent)


def _read(path: Path, start: int, size: int) -> bytes:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.pread(descriptor, size, start)
    finally:
        os.close(descriptor)


def sync_directory(path: Path) -> None:
    """Makes the names in a directory durable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


_HEX: Final = frozenset("0123456789abcdef")
_LENGTH: Final = 64


def is_digest(name: str) -> bool:
    """Whether a name can be a content hash; other names are never looked up."""
    return len(name) == _LENGTH and _HEX.issuperset(name)


WITHOUT_EXTRA: Final = "buckets take a further library: pip install 'passerelle[s3]'"
_PARTS: Final = ("", "copies", "uploads", "archive", "forgotten")
"""The parts of a place, in the order of ``BlobStores``. Copies may expire, content of facts may not."""


class BlobStore(Copies, Protocol):
    """Content storage that can be probed at start, and whose names can be listed."""

    async def replace(self, shard: Shard, name: str, content: bytes) -> None:
        """Replaces the content with this name, atomically for all readers. Raises StoreUnavailable."""
        ...

    async def measure(self, shard: Shard, sha256: str) -> int | None:
        """The size of content in bytes; None if it does not exist. Raises StoreUnavailable."""
        ...

    async def list_digests(self, shard: Shard) -> list[str]:
        """The hashes of all content of a shard. Raises StoreUnavailable."""
        ...

    async def probe(self) -> None:
        """Writes, reads and deletes a blob.

        Raises:
            ConfigInvalid: the place cannot be used.
        """
        ...


@frozen
class BlobStores:
    """Everything that is stored outside of the engine, each in its own part of one place.

    ``blobs`` is the content of facts, ``copies`` the files that agents named by URL, ``uploads`` what agents uploaded
    and no artifact refers to yet, ``segments`` the archived sessions, ``tombstones`` those of forgotten data.
    """

    blobs: BlobStore
    copies: BlobStore
    uploads: BlobStore
    segments: BlobStore
    tombstones: BlobStore
    failures: ContentFailures
    """The failures of all of them."""

    @classmethod
    def open(cls, place: Path | str) -> Self:
        """Opens them in a folder, or below ``s3://bucket/prefix``. Raises as ``open_blobs`` does."""
        failures = ContentFailures()
        blobs, copies, uploads, segments, tombstones = (
            _open(place, part, failures) for part in _PARTS
        )
        return cls(blobs, copies, uploads, segments, tombstones, failures)


def open_blobs(place: Path | str) -> BlobStore:
    """Opens the content of facts: a folder, or ``s3://bucket/prefix``.

    Raises:
        ConfigInvalid: the bucket URL is invalid, or the bucket library is not installed.
    """
    return _open(place, "", ContentFailures())


def _open(place: Path | str, part: str, failures: ContentFailures) -> BlobStore:
    if isinstance(place, Path):
        return DirectoryBlobs(place / part, failures)
    return _open_bucket(place, part, failures)


def _open_bucket(url: str, part: str, failures: ContentFailures) -> BucketBlobs:
    try:
        from passerelle.store.buckets import BucketBlobs  # noqa: PLC0415  an extra
    except ImportError:
        raise ConfigInvalid("blobs", WITHOUT_EXTRA) from None
    return BucketBlobs(url, part, failures)
