"""Where content too large for a fact stands: a folder, or a bucket; its library is loaded only where one is named."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

from passerelle.core.errors import ConfigInvalid
from passerelle.core.ports.blobs import Copies
from passerelle.store.blobs import DirectoryBlobs

if TYPE_CHECKING:
    from passerelle.store.buckets import BucketBlobs

WITHOUT_EXTRA: Final = "buckets take a further library: pip install 'passerelle[s3]'"
_UPLOADS: Final = "uploads"
"""The part with what agents have uploaded, and no artifact has named yet."""
_COPIES: Final = "copies"
"""The part with files that agents named by address: they may expire, what facts are made of may not."""


class BlobStore(Copies, Protocol):
    """Content that a start can try out."""

    async def probe(self) -> None:
        """Writes, reads and deletes a blob.

        Raises:
            ConfigInvalid: the place cannot be used.
        """
        ...


def open_blobs(place: Path | str) -> BlobStore:
    """The content of facts: a folder, or ``s3://bucket/prefix``.

    Raises:
        ConfigInvalid: the bucket is no bucket, or its library is not installed.
    """
    return DirectoryBlobs(place) if isinstance(place, Path) else _open_bucket(place)


def open_copies(place: Path | str) -> BlobStore:
    """Files of agents, beside the content of facts. Raises as ``open_blobs`` does."""
    return _open_part(place, _COPIES)


def open_uploads(place: Path | str) -> BlobStore:
    """Uploads of agents, beside the content of facts. Raises as ``open_blobs`` does."""
    return _open_part(place, _UPLOADS)


def _open_part(place: Path | str, part: str) -> BlobStore:
    return DirectoryBlobs(place / part) if isinstance(place, Path) else _open_bucket(place, part)


def _open_bucket(url: str, part: str = "") -> BucketBlobs:
    try:
        from passerelle.store.buckets import BucketBlobs  # noqa: PLC0415  an extra
    except ImportError:
        raise ConfigInvalid("blobs", WITHOUT_EXTRA) from None
    return BucketBlobs(url, part)
