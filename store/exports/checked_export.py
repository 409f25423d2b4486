"""Checks an export before it is imported: that it is complete, of a known form, and valid.

Invalid input raises an InvalidInput that names the member. Whether records match the fold of their facts is not checked
here: ``passerelle verify`` checks that for any store.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Final, assert_never

from passerelle.core.errors import InvalidInput
from passerelle.core.event_chain import extend_chain, start_chain
from passerelle.core.index_changes import is_open
from passerelle.core.machine import read_snapshot
from passerelle.core.ports.log import StreamKind, StreamRef
from passerelle.store.archive.frame import (
    ARCHIVED_KINDS,
    MOST_PLAIN_BYTES,
    SessionFrame,
    read_frame,
)
from passerelle.store.exports.form import HEAD, SUMMARY, ExportPart, read_head, read_hold, read_part
from passerelle.store.exports.session_source import is_home, read_field
from passerelle.store.replies import as_hash
from passerelle.store.stream_entries import read_rows

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from passerelle.core.batch import EntityRef
    from passerelle.core.machine import Record
    from passerelle.store.exports.form import ExportHead
    from passerelle.store.exports.member_file import ExportMember, MemberFile

_MOST_BYTES: Final = MOST_PLAIN_BYTES + MOST_PLAIN_BYTES // 16
"""Maximum size of a member that is read completely: incompressible data gets a little longer."""


def check_export(file: MemberFile) -> ExportHead:
    """Reads and checks a whole file; returns its head.

    Raises:
        InvalidInput: a member is missing, damaged, unknown or newer; ``field`` is its name.
        OSError: the file cannot be read.
    """
    head: ExportHead | None = None
    last = ""
    for member, digest in file.check():
        if head is None:
            if member.name != HEAD:
                raise InvalidInput(HEAD, f"is not the first member: {member.name} is")
            head = read_head(read_whole(file, member))
        elif member.name != SUMMARY:
            _check_part(file, member, digest)
        last = member.name
    if head is None or last != SUMMARY:
        raise InvalidInput(SUMMARY, "is not the last member before the manifest")
    return head


def list_parts(file: MemberFile) -> Iterator[tuple[ExportPart, ExportMember]]:
    """The parts of a checked export."""
    for member in file.list_members():
        if "/" in member.name:
            yield read_part(member.name), member


def read_whole(file: MemberFile, member: ExportMember) -> bytes:
    """The content of a member that has to fit into memory. Raises InvalidInput, OSError."""
    if member.size > _MOST_BYTES:
        raise InvalidInput(member.name, f"has {member.size} bytes, and {_MOST_BYTES} at most")
    return file.read(member)


def read_session(file: MemberFile, part: ExportPart, member: ExportMember) -> SessionFrame:
    """The session of a member.

    Raises:
        InvalidInput: it is no session, is another one, has not ended, or its events do not match its head.
    """
    try:
        frame = read_frame(read_whole(file, member))
        _check_names(part, frame)
        _check_stream(frame)
    except (LookupError, TypeError, ValueError) as error:
        raise InvalidInput(member.name, f"is no session: {error}") from None
    if is_home(frame):
        raise InvalidInput(member.name, "is the home session of a caller: an export has none such")
    for ref, flat in frame.hashes.items():
        if is_open(_read_record(member, ref, as_hash(flat))):
            raise InvalidInput(member.name, f"{ref.id} has not ended: an export has none such")
    return frame


def _check_part(file: MemberFile, member: ExportMember, digest: str) -> None:
    part = read_part(member.name)
    match part.kind:
        case "sessions":
            read_session(file, part, member)
        case "holds":
            read_hold(member.name, read_whole(file, member))
        case "content" | "copies":
            if digest != part.id:
                raise InvalidInput(member.name, f"is content of another hash, {digest}")
        case _:
            assert_never(part.kind)


def _check_names(part: ExportPart, frame: SessionFrame) -> None:
    strangers = [
        ref.id for ref in frame.hashes if ref.kind not in ARCHIVED_KINDS or ref.shard != part.shard
    ]
    if frame.session != part.id or strangers:
        message = f"it is that of {frame.session}, with {strangers}"
        raise ValueError(message)
    if frame.find_owner() is None:
        message = "its record names no owner"
        raise ValueError(message)


def _check_stream(frame: SessionFrame) -> None:
    """Checks that the events form an unbroken chain from the head's first sequence to its last."""
    epoch, first = read_field(frame, "epoch") or b"", int(read_field(frame, "first") or 1)
    entries = read_rows(frame.entries, StreamRef(StreamKind.SESSION, frame.session), 0, sys.maxsize)
    expected, chain = first, start_chain(epoch.decode()) if first == 1 else None
    for entry in entries:
        if entry.sequence != expected or chain not in {None, entry.previous}:
            message = f"its events break off before {entry.sequence}"
            raise ValueError(message)
        expected, chain = expected + 1, extend_chain(entry.previous, entry.event_id)
    said = (read_field(frame, "seq") or b"").decode(), (read_field(frame, "chain") or b"").decode()
    if said != (str(expected - 1), chain):
        message = f"its events end at {expected - 1}, and its head says {said[0]}"
        raise ValueError(message)


def _read_record(
    member: ExportMember, ref: EntityRef, fields: Mapping[str, bytes]
) -> Record | None:
    try:
        return read_snapshot(ref.kind, fields.get("s", b""))
    except InvalidInput as error:
        raise InvalidInput(member.name, f"the record of {ref.id} cannot be read: {error}") from None
