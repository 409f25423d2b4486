"""Content too large for a fact, in an S3 bucket shared by instances on several machines.

Objects are named by shard and SHA-256, so the same content is the same object and a repeated put does no harm. The
credentials, region and endpoint come from the environment, under the usual names
(``AWS_ACCESS_KEY_ID``, ``AWS_REGION``, ``AWS_ENDPOINT_URL`` …).
"""

from __future__ import annotations

import hashlib
import secrets
from datetime import timedelta
from typing import TYPE_CHECKING, Final

import obstore
from obstore import delete_async, get_async, get_range_async, head_async, put_async
from obstore.exceptions import BaseError
from obstore.store import S3Store

from passerelle.core.errors import ConfigInvalid, StoreUnavailable
from passerelle.core.ids import Shard
from passerelle.store.blobs import is_digest

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from passerelle.store.content_failures import ContentFailures

_PROBE: Final = b"passerelle blob probe"
_CONNECT_S: Final = 3
_ANSWER_S: Final = 20
_RETRIES: Final = 2
_RETRY_S: Final = 10
_PART_BYTES: Final = 1_048_576


class BucketBlobs:
    """``core.ports.blobs.Copies`` below a prefix of a bucket; ``url`` reads ``s3://bucket/prefix``."""

    def __init__(self, url: str, part: str, failures: ContentFailures) -> None:
        self.url = url
        self._failures = failures
        self._part = f"{part}/" if part else ""
        self._bucket = _open(url)

    async def put(self, shard: Shard, content: bytes) -> str:
        """Stores the content and returns its SHA-256 in hex.

        Raises:
            StoreUnavailable: the bucket cannot take it.
        """
        digest = hashlib.sha256(content).hexdigest()
        try:
            await put_async(self._bucket, self._name(shard, digest), content)
        except (BaseError, OSError, ValueError) as error:
            raise self._fail(error) from error
        return digest

    async def put_pieces(self, shard: Shard, sha256: str, pieces: Iterable[bytes]) -> None:
        """Stores content with a known hash, piece by piece; ``pieces`` may be consumed in another thread.

        Raises:
            StoreUnavailable: the bucket cannot take it.
        """
        try:
            await put_async(self._bucket, self._name(shard, sha256), _join(pieces))
        except (BaseError, OSError, ValueError) as error:
            raise self._fail(error) from error

    async def replace(self, shard: Shard, name: str, content: bytes) -> None:
        """Replaces the content with this name; readers get the old or the new content, never a mix.

        Raises:
            StoreUnavailable: the bucket cannot take it; the old content stays.
        """
        await self.put_pieces(shard, name, (content,))

    async def get(self, shard: Shard, sha256: str) -> bytes | None:
        """The content, or None if it does not exist.

        Raises:
            StoreUnavailable: the bucket does not answer, or the content is damaged.
        """
        if not is_digest(sha256):
            return None
        try:
            found = await get_async(self._bucket, self._name(shard, sha256))
            content = bytes(await found.bytes_async())
        except FileNotFoundError:
            return None
        except (BaseError, OSError, ValueError) as error:
            raise self._fail(error) from error
        if hashlib.sha256(content).hexdigest() != sha256:
            raise self._failures.note(f"blob {sha256} is damaged")
        return content

    async def read(self, shard: Shard, sha256: str, start: int, size: int) -> bytes | None:
        """At most ``size`` bytes from ``start`` on, not compared with the hash; None if it does not exist.

        Raises:
            StoreUnavailable: the bucket does not answer.
        """
        if not is_digest(sha256):
            return None
        name = self._name(shard, sha256)
        try:
            return bytes(await get_range_async(self._bucket, name, start=start, length=size))
        except FileNotFoundError:
            return None
        except (BaseError, OSError, ValueError) as error:
            # A bucket refuses a range that begins after the end.
            if await self._ends_before(name, start):
                return b""
            raise self._fail(error) from error

    async def _ends_before(self, name: str, start: int) -> bool:
        try:
            return (await head_async(self._bucket, name))["size"] <= start
        except (BaseError, OSError, ValueError):
            return False

    async def measure(self, shard: Shard, sha256: str) -> int | None:
        """The size of content in bytes; None if it does not exist.

        Raises:
            StoreUnavailable: the bucket does not answer.
        """
        if not is_digest(sha256):
            return None
        try:
            return (await head_async(self._bucket, self._name(shard, sha256)))["size"]
        except FileNotFoundError:
            return None
        except (BaseError, OSError, ValueError) as error:
            raise self._fail(error) from error

    async def expire(self, shard: Shard, sha256: str, before_ms: int) -> bool:
        """Removes content last put before ``before_ms``, by the clock of the bucket; returns whether it is gone.

        Raises:
            StoreUnavailable: the bucket does not answer.
        """
        name = self._name(shard, sha256)
        try:
            found = await head_async(self._bucket, name)
            if found["last_modified"].timestamp() * 1000 >= before_ms:
                return False
            await delete_async(self._bucket, name)
        except FileNotFoundError:
            return True
        except (BaseError, OSError, ValueError) as error:
            raise self._fail(error) from error
        return True

    async def list_digests(self, shard: Shard) -> list[str]:
        """The hashes of all content of a shard.

        Raises:
            StoreUnavailable: the bucket does not answer.
        """
        try:
            listed = obstore.list(self._bucket, f"{self._part}{shard.tag}/")  # pyright: ignore[reportUnknownMemberType]
            found = await listed.collect_async()
        except (BaseError, OSError, ValueError) as error:
            raise self._fail(error) from error
        names = (one["path"].rpartition("/")[2] for one in found)
        return [name for name in names if is_digest(name)]

    async def probe(self) -> None:
        """Writes, reads and deletes a blob.

        Raises:
            ConfigInvalid: the bucket cannot be used.
        """
        content = _PROBE + secrets.token_bytes(8)
        try:
            digest = await self.put(Shard(0), content)
            found = await self.get(Shard(0), digest)
            await delete_async(self._bucket, self._name(Shard(0), digest))
        except (StoreUnavailable, BaseError, OSError, ValueError) as error:
            raise ConfigInvalid("blobs", f"{self.url}: {error}") from error
        if found != content:
            raise ConfigInvalid("blobs", f"{self.url} does not give back what was written")

    def _fail(self, error: Exception) -> StoreUnavailable:
        """Uses only the first line of an error: the others are the library's debug output, with headers in it."""
        first = str(error).strip().partition("\n")[0]
        return self._failures.note(f"bucket: {first[:200]}")

    def _name(self, shard: Shard, digest: str) -> str:
        return f"{self._part}{shard.tag}/{digest[:2]}/{digest}"


def _join(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """The same bytes in larger pieces: the library passes on each piece separately."""
    joined = bytearray()
    for piece in pieces:
        joined += piece
        if len(joined) >= _PART_BYTES:
            yield bytes(joined)
            joined.clear()
    yield bytes(joined)


def _open(url: str) -> S3Store:
    try:
        return S3Store.from_url(
            url,
            client_options={
                # Takes effect only with an http AWS_ENDPOINT_URL: the default endpoints have certificates.
                "allow_http": True,
                "connect_timeout": timedelta(seconds=_CONNECT_S),
                "timeout": timedelta(seconds=_ANSWER_S),
            },
            retry_config={
                "max_retries": _RETRIES,
                "retry_timeout": timedelta(seconds=_RETRY_S),
            },
        )
    except (BaseError, ValueError) as error:
        raise ConfigInvalid("blobs", f"{url}: {error}") from error
