"""One segment made of several: the part between header and footer of each is copied unchanged, including erased frames.

So each frame of one of them is at a constant distance from its old offset. The footer lists the old segments.
"""

from __future__ import annotations

import hashlib
import zlib
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

import orjson

from passerelle.store.archive.erased_frame import read_erased
from passerelle.store.archive.segment import (
    HEADER,
    SegmentName,
    end_segment,
    split_segment,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from passerelle.core.ids import Shard

NOTE_BYTES: Final = 160
"""Maximum bytes of the footer for each joined segment."""


class JoinedPart(NamedTuple):
    """A segment whose frames are in another one: the shift of their offsets in bytes, and the bytes of all frames."""

    name: SegmentName
    shift: int
    bytes: int

    def holds(self, offset: int) -> bool:
        """Whether the frame at this offset in the joined segment belongs to this part."""
        return 0 <= offset - self.shift - len(HEADER) < self.bytes


class _CheckedSegment(NamedTuple):
    footer: Mapping[str, Any]
    body: bytes


def read_parts(content: bytes) -> list[JoinedPart]:
    """The segments that one was made of; empty if it was not made of others.

    Raises:
        ValueError: it is no segment.
    """
    return _list_parts(_read_footer(split_segment(content)[1]))


def check_segment(content: bytes, name: SegmentName, runtime_id: str) -> list[JoinedPart]:
    """Compares a segment with its footer, frame by frame; returns the segments that it was made of.

    Raises:
        ValueError: it is not that segment, or a frame of it is damaged.
    """
    return _list_parts(_check(content, name, runtime_id).footer)


def join_segments(
    home: Shard, runtime_id: str, segments: Sequence[tuple[SegmentName, bytes]], at_ms: int
) -> bytes:
    """One segment with all frames of these. It contains the time, so that a later merge makes a different object.

    Raises:
        ValueError: a frame is damaged, or one is no such segment: it must not be written again.
    """
    bodies, frames, parts = [HEADER], list["Mapping[str, Any]"](), list[JoinedPart]()
    shift = 0
    for name, content in segments:
        footer, body = _check(content, name, runtime_id)
        bodies.append(body)
        frames += [{**frame, "offset": frame["offset"] + shift} for frame in footer["frames"]]
        parts.append(JoinedPart(name, shift, len(body)))
        shift += len(body)
    footer = {
        "shard": home.tag,
        "runtimeId": runtime_id,
        "frames": frames,
        "joined": {"at": at_ms, "of": [[str(one.name), one.shift, one.bytes] for one in parts]},
    }
    return b"".join((*bodies, *end_segment(orjson.dumps(footer))))


def _check(content: bytes, name: SegmentName, runtime_id: str) -> _CheckedSegment:
    """A name is the hash of the original content; if frames were erased since, each frame is compared by itself."""
    body, stored = split_segment(content)
    footer = _read_footer(stored)
    if len(content) != name.bytes:
        _refuse(name, "its length")
    if (footer.get("shard"), footer.get("runtimeId")) != (name.home.tag, runtime_id):
        _refuse(name, "whose it is")
    is_as_written = not any("forgotten" in frame for frame in footer["frames"])
    if is_as_written and hashlib.sha256(content).hexdigest() != name.sha256:
        _refuse(name, "its hash")
    for frame in footer["frames"]:
        offset, length = int(frame["offset"]), int(frame["length"])
        stored_frame = content[offset : offset + length]
        if "forgotten" in frame:
            is_whole = read_erased(stored_frame) is not None
        else:
            is_whole = zlib.crc32(stored_frame) == frame["crc32"]
        if not is_whole or len(stored_frame) != length:
            _refuse(name, f"the frame at {offset}")
    return _CheckedSegment(footer, body)


def _read_footer(stored: bytes) -> Mapping[str, Any]:
    footer = cast("Mapping[str, Any]", orjson.loads(stored))
    if "frames" not in footer:
        message = "no segment: its footer is damaged"
        raise ValueError(message)
    return footer


def _list_parts(footer: Mapping[str, Any]) -> list[JoinedPart]:
    return [
        JoinedPart(SegmentName.read(name), int(shift), int(size))
        for name, shift, size in footer.get("joined", {}).get("of", ())
    ]


def _refuse(name: SegmentName, what: str) -> None:
    message = f"segment {name.sha256} of the archive: {what} is not what its footer says"
    raise ValueError(message)
