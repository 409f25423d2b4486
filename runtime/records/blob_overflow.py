"""Moves content over the size limit of a fact to the blob store, and leaves a reference with a preview (ENV-11).

Pure: it collects the blobs, and the write path stores them before the fact that names them.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final, Literal

import orjson

from passerelle.a2a_mapping.long_task import preview_frame
from passerelle.core.events import FRAME, Fact
from passerelle.core.facts import Ref
from passerelle.core.frozen import frozen
from passerelle.core.payloads.run import OutputSpilled

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from passerelle.core.events import AnyPayload
    from passerelle.core.facts import Scope
    from passerelle.core.wire.json import JsonObject

SUBJECT: Final = "subject"
"""Name of the reference to the full subject of an approval."""
CAP: Final = 16 * 1024
"""Bytes that a fact may contain itself."""
_NOTHING: Final[Mapping[str, bytes]] = {}
_NOWHERE: Final[Mapping[str, Ref]] = {}


@frozen
class Note:
    """A fact to be written, and the content behind each of its references."""

    payload: AnyPayload
    contents: Mapping[str, bytes] = field(default_factory=lambda: _NOTHING)
    stored: Mapping[str, Ref] = field(default_factory=lambda: _NOWHERE)
    """References to content that is already stored."""


@frozen
class LongBlob:
    """Content by its hash, and a function that writes it."""

    sha256: str
    size: int
    write: Callable[[], Iterator[bytes]]


@dataclass(slots=True)
class BlobOverflow:
    """The blobs to be stored before the facts of one decision."""

    blobs: list[bytes] = field(default_factory=list[bytes])
    long: list[LongBlob] = field(default_factory=list["LongBlob"])
    """Blobs that are written piece by piece."""

    def keep(self, content: bytes, preview: str | None = None) -> Ref:
        """Returns a reference to ``content``, which is JSON and will be stored."""
        self.blobs.append(content)
        return _refer(hashlib.sha256(content).hexdigest(), len(content), preview)

    def keep_long(self, write: Callable[[], Iterator[bytes]], preview: str | None = None) -> Ref:
        """The same for JSON that is not held in memory: ``write`` returns its pieces, the same ones each time."""
        digest, size = hashlib.sha256(), 0
        for piece in write():
            digest.update(piece)
            size += len(piece)
        self.long.append(LongBlob(digest.hexdigest(), size, write))
        return _refer(digest.hexdigest(), size, preview)


def _refer(sha256: str, size: int, preview: str | None) -> Ref:
    return Ref(blob=sha256, size=size, media_type="application/json", preview=preview or None)


def keep_subject(spill: BlobOverflow, facts: list[Fact], whole: bytes | None) -> list[Fact]:
    """The facts that open an approval; the first refers to the subject if that is too large for the fact."""
    if whole is None:
        return facts
    opening, *others = facts
    return [replace(opening, refs={**opening.refs, SUBJECT: spill.keep(whole)}), *others]


def write_notes(spill: BlobOverflow, scope: Scope, notes: Iterable[Note]) -> list[Fact]:
    """The facts of some notes; their contents are collected as blobs."""
    return [
        Fact(
            scope,
            note.payload,
            {
                **note.stored,
                **{name: spill.keep(said) for name, said in note.contents.items()},
            },
        )
        for note in notes
    ]


def show(
    spill: BlobOverflow,
    fact: Fact,
    frame: JsonObject,
    facade: str,
    of: Literal["message", "status", "artifact"],
) -> list[Fact]:
    """The fact as callers of ``facade`` see it, preceded by a fact about its overflow if the frame is too large."""
    content = orjson.dumps(frame)
    if len(content) <= CAP:
        return [Fact(fact.scope, fact.payload, fact.refs, content, facade)]
    ref = spill.keep(content, preview_frame(frame))
    spilled = OutputSpilled(of=of, size=len(content), sha256=ref.blob or "")
    return [
        Fact(fact.scope, spilled, {"output": ref}),
        Fact(fact.scope, fact.payload, {**fact.refs, FRAME: ref}, None, facade),
    ]


def hold(spill: BlobOverflow, content: JsonObject) -> Ref | None:
    """A reference to ``content`` if it is too large for the fact itself, else None."""
    packed = orjson.dumps(content)
    return spill.keep(packed, preview_frame(content)) if len(packed) > CAP else None
