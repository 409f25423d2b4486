"""A file of members in tar format, followed by a manifest with the SHA-256 of each.

The manifest has the format of ``sha256sum --check``, so standard tools can unpack and check the file. Each byte is
defined: a header is what ``pack_header`` makes of name and size, padding is zero, and the file ends after two blocks of
zeros. So any truncation or change is detected, and the member is named. At most one piece of a member is in memory.
"""

from __future__ import annotations

import hashlib
import tarfile
from collections import deque
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING, Final, NamedTuple

from passerelle.core.errors import InvalidInput
from passerelle.core.frozen import frozen

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator

MANIFEST: Final = "manifest.sha256"
FILE: Final = "file"
"""The field name of errors that concern no single member."""
PIECE_BYTES: Final = 1024 * 1024
_BLOCK: Final = tarfile.BLOCKSIZE
_END: Final = bytes(2 * _BLOCK)
_MODE: Final = 0o600
_LONGEST_LINE: Final = 512


class ExportMember(NamedTuple):
    """The position of a member's content in the file."""

    name: str
    offset: int
    size: int


def pack_header(name: str, size: int) -> bytes:
    """The block before a member, which depends only on its name and size."""
    header = tarfile.TarInfo(name)
    header.size, header.mode = size, _MODE
    return header.tobuf(tarfile.USTAR_FORMAT, "ascii", "strict")


@frozen
class MemberWriter:
    """Writes members. ``lines`` keeps the manifest until ``finish``, in a file of its own because it may get long."""

    file: IO[bytes]
    lines: IO[bytes]

    def add(self, name: str, content: bytes) -> None:
        """Writes a member whose content is in memory. Raises OSError."""
        with self.open(name, len(content)) as write:
            write(content)

    @contextmanager
    def open(
        self, name: str, size: int, sha256: str | None = None
    ) -> Generator[Callable[[bytes], None]]:
        """Yields a function that takes the pieces of a member.

        Raises:
            OSError: the file cannot be written.
            ValueError: the pieces are not ``size`` bytes in total, or do not have the given hash.
        """
        digest, left = hashlib.sha256(), size

        def write(piece: bytes) -> None:
            nonlocal left
            self.file.write(piece)
            digest.update(piece)
            left -= len(piece)

        self.file.write(pack_header(name, size))
        yield write
        if left:
            message = f"{name} has {size - left} bytes and not {size}"
            raise ValueError(message)
        if sha256 not in {None, digest.hexdigest()}:
            message = f"{name} has another hash"
            raise ValueError(message)
        self.file.write(bytes(-size % _BLOCK))
        self.lines.write(_pack_line(digest.hexdigest(), name))

    def finish(self) -> None:
        """Writes the manifest, which completes the file. Raises OSError."""
        size = self.lines.tell()
        self.lines.seek(0)
        self.file.write(pack_header(MANIFEST, size))
        while piece := self.lines.read(PIECE_BYTES):
            self.file.write(piece)
        self.file.write(bytes(-size % _BLOCK) + _END)


@frozen
class MemberFile:
    """Reads such a file, which must be seekable. All raise InvalidInput, which names the member, and OSError."""

    file: IO[bytes]

    def list_members(self) -> Iterator[ExportMember]:
        """The members in order, the manifest last; other reads of the file may be interleaved."""
        at, name = 0, ""
        while name != MANIFEST:
            self.file.seek(at)
            member = _read_header(self.file.read(_BLOCK), at, name)
            at, name = member.offset + member.size, member.name
            fill = -member.size % _BLOCK
            self.file.seek(at)
            if self.file.read(fill) != bytes(fill):
                raise InvalidInput(name, "is cut off, or followed by other data")
            at += fill
            yield member
        self.file.seek(at)
        if self.file.read(len(_END) + 1) != _END:
            raise InvalidInput(FILE, "does not end after its manifest")

    def read(self, member: ExportMember) -> bytes:
        """The content of a member that fits into memory."""
        return b"".join(self.read_pieces(member))

    def read_pieces(self, member: ExportMember) -> Iterator[bytes]:
        """The content of a member; other reads of the file may be interleaved."""
        at, end = member.offset, member.offset + member.size
        while at < end:
            self.file.seek(at)
            piece = self.file.read(min(PIECE_BYTES, end - at))
            if not piece:
                raise InvalidInput(member.name, "ends before its end")
            at += len(piece)
            yield piece

    def check(self) -> Iterator[tuple[ExportMember, str]]:
        """Each member except the manifest with its SHA-256, after comparing it with the manifest."""
        # Headers first: a truncated file is detected before any content is read.
        [last] = deque(self.list_members(), maxlen=1)
        lines = self._read_lines(last)
        for member in self.list_members():
            if member.name == MANIFEST:
                break
            line = next(lines, b"")
            digest = digest_pieces(self.read_pieces(member))
            if line != _pack_line(digest, member.name):
                raise InvalidInput(member.name, "is not what the manifest says: it was changed")
            yield member, digest
        if next(lines, b""):
            raise InvalidInput(MANIFEST, "names a member that is not there")

    def _read_lines(self, manifest: ExportMember) -> Iterator[bytes]:
        at, end = manifest.offset, manifest.offset + manifest.size
        while at < end:
            self.file.seek(at)
            line = self.file.readline(min(_LONGEST_LINE, end - at))
            at += len(line)
            yield line


def digest_pieces(pieces: Iterable[bytes]) -> str:
    """The SHA-256 of all pieces together, in hex."""
    digest = hashlib.sha256()
    for piece in pieces:
        digest.update(piece)
    return digest.hexdigest()


def _pack_line(digest: str, name: str) -> bytes:
    return f"{digest}  {name}\n".encode("ascii")


def _read_header(block: bytes, at: int, before: str) -> ExportMember:
    place = f"after {before}" if before else "at its beginning"
    if len(block) < _BLOCK or block in _END:
        raise InvalidInput(FILE, f"is no whole export: it was cut {place}")
    try:
        header = tarfile.TarInfo.frombuf(block, "ascii", "strict")
        if pack_header(header.name, header.size) == block:
            return ExportMember(header.name, at + _BLOCK, header.size)
    except (tarfile.HeaderError, ValueError):
        pass
    raise InvalidInput(FILE, f"is no export, or was changed {place}")
