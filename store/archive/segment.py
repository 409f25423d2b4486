"""A segment: frames in one object that is never changed, of one shard or of several that have few.

``PSAR`` and the number of the form · frames · footer (JSON) · its length (4 bytes) · ``PSAR``. A reader who knows where
a frame stands takes its bytes alone; the footer says what all of them are, for whoever walks the archive.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self, cast

import orjson

from passerelle.core.ids import ALL_SHARDS, Shard
from passerelle.store.archive.locator import Locator

if TYPE_CHECKING:
    from collections.abc import Sequence

MAGIC: Final = b"PSAR"
FORM: Final = 2
HEADER: Final = MAGIC + FORM.to_bytes(4, "big")
_SIZE: Final = 4
TRAILER: Final = _SIZE + len(MAGIC)


@dataclass(frozen=True, slots=True)
class PackedFrame:
    """A frame with the ids that it has entities of, the session first."""

    names: tuple[str, ...]
    stored: bytes
    key: str
    """The name of the data key that it is sealed with."""
    at_ms: int
    """The time of the last event of its session."""


class FrameNote(NamedTuple):
    """What a footer says of a frame: its ids, the session first, the name of its data key, and where it stands.

    ``at_ms`` is the time of the last event of its session.
    """

    names: tuple[str, ...]
    key: str
    offset: int
    length: int
    at_ms: int

    @property
    def session(self) -> str:
        """The session that the frame has."""
        return self.names[0]


@dataclass(frozen=True, slots=True)
class Segment:
    """The bytes of an object, and where each frame stands in it. The number of a segment is given when it is used."""

    content: bytes
    places: tuple[Locator, ...]


def pack_segment(home: Shard, runtime_id: str, frames: Sequence[PackedFrame]) -> Segment:
    """One object of all frames, to stand in the shard ``home``."""
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
    """What stands behind all frames."""
    return footer, len(footer).to_bytes(_SIZE, "big"), MAGIC


def split_segment(content: bytes) -> tuple[bytes, bytes]:
    """What stands between the header of an object and its footer, and the footer.

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
    """An object: its hash, its length, and the shard where it stands; others that have frames in it name it as well."""

    sha256: str
    bytes: int
    home: Shard

    @classmethod
    def read(cls, name: str) -> Self:
        """Reads what the store has."""
        digest, size, tag = name.split(" ")
        return cls(digest, int(size), ALL_SHARDS[int(tag, 16)])

    def __str__(self) -> str:
        """How the store names it."""
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
    """What it says of each frame that is not forgotten.

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
