"""A segment: frames in one immutable object, of one shard or of several with few frames.

``PSAR`` and the number of the form · frames · footer (JSON) · its length (4 bytes) · ``PSAR``. A reader with the
position of a frame reads only its bytes; the footer describes all of them, for walks through the archive.
"""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self, cast

import orjson

from passerelle.core.frozen import frozen
from passerelle.core.ids import ALL_SHARDS, Shard
from passerelle.store.archive.locator import Locator

if TYPE_CHECKING:
    from collections.abc import Sequence

MAGIC: Final = b"PSAR"
FORM: Final = 2
HEADER: Final = MAGIC + FORM.to_bytes(4, "big")
_SIZE: Final = 4
TRAILER: Final = _SIZE + len(MAGIC)


@frozen
class PackedFrame:
    """A frame with the ids of its entities, the session first."""

    names: tuple[str, ...]
    stored: bytes
    key: str
    """The name of the data key that it is sealed with."""
    at_ms: int
    """The time of the last event of its session."""


class FrameNote(NamedTuple):
    """The footer entry of a frame: its ids, the session first, the name of its data key, and its position.

    ``at_ms`` is the time of the last event of its session.
    """

    names: tuple[str, ...]
    key: str
    offset: int
    length: int
    at_ms: int

    @property
    def session(self) -> str:
        """The session of the frame."""
        return self.names[0]


@frozen
class Segment:
    """The bytes of an object, and the position of each frame. Its number is assigned when it is first named."""

    content: bytes
    places: tuple[Locator, ...]


def pack_segment(home: Shard, runtime_id: str, frames: Sequence[PackedFrame]) -> Segment:
    """One object with all frames, to be stored in the shard ``home``."""
    parts, places = [HEADER], list[Locator]()
    offset = len(HEADER)
    for frame in frames:
        parts.append(frame.stored)
        places.append(Locator.of(offset, frame.stored))
        offset += len(frame.stored)
    footer = orjson.dumps(
        {
            "shard": home.tag,
            "runtimeId": runtime_id,
            "frames": [
                {
                    "names": frame.names,
                    "key": frame.key,
                    "at": frame.at_ms,
                    "offset": at.offset,
                    "length": at.length,
                    "crc32": zlib.crc32(frame.stored),
                }
                for frame, at in zip(frames, places, strict=True)
            ],
        }
    )
    return Segment(b"".join((*parts, *end_segment(footer))), tuple(places))


def end_segment(footer: bytes) -> tuple[bytes, bytes, bytes]:
    """The bytes after all frames."""
    return footer, len(footer).to_bytes(_SIZE, "big"), MAGIC


def split_segment(content: bytes) -> tuple[bytes, bytes]:
    """The bytes between the header and the footer of an object, and the footer.

    Raises:
        ValueError: it is no segment.
    """
    end = len(content) - TRAILER
    start = end - read_footer_size(content[-TRAILER:])
    if not content.startswith(MAGIC) or start < len(HEADER):
        message = "no segment: its beginning is damaged or not there"
        raise ValueError(message)
    return content[len(HEADER) : start], content[start:end]


class SegmentName(NamedTuple):
    """An object: its hash, its length, and its shard; other shards with frames in it name it as well."""

    sha256: str
    bytes: int
    home: Shard

    @classmethod
    def read(cls, name: str) -> Self:
        """Reads the stored form."""
        digest, size, tag = name.split(" ")
        return cls(digest, int(size), ALL_SHARDS[int(tag, 16)])

    def __str__(self) -> str:
        """The stored form."""
        return f"{self.sha256} {self.bytes} {self.home.tag}"


def read_footer_size(trailer: bytes) -> int:
    """The length of the footer before the last ``TRAILER`` bytes of an object.

    Raises:
        ValueError: these are not the last bytes of a segment.
    """
    if len(trailer) != TRAILER or not trailer.endswith(MAGIC):
        message = "no segment: it does not end as one"
        raise ValueError(message)
    return int.from_bytes(trailer[:_SIZE], "big")


def read_footer(footer: bytes) -> list[FrameNote]:
    """The notes for each frame that is not forgotten.

    Raises:
        ValueError: it is no footer.
    """
    try:
        found = cast("dict[str, Any]", orjson.loads(footer))
        return [
            FrameNote(
                (frame["names"][0], *frame["names"][1:]),
                str(frame["key"]),
                int(frame["offset"]),
                int(frame["length"]),
                int(frame["at"]),
            )
            for frame in found["frames"]
            if "forgotten" not in frame
        ]
    except (LookupError, TypeError, ValueError) as error:
        message = f"no segment: its footer is damaged ({error})"
        raise ValueError(message) from None
