"""A folder of Parquet files, one for each table, with a manifest that marks it as complete.

While it is written each file is ``<table>.parquet.part``. At the end they are renamed, ``export.json`` describes them,
and last of all ``manifest.sha256`` has the SHA-256 of each, in the format of ``sha256sum --check``: a folder without a
manifest is no export. Rows are buffered in memory until a row group is full, by bytes or by number.

Needs pyarrow, which is an extra; callers import only ``open_folder``, and only if it is requested.
"""

from __future__ import annotations

import fcntl
import hashlib
import io
import os
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

import orjson

from passerelle.core.errors import InvalidInput
from passerelle.core.frozen import frozen
from passerelle.store.exports.form import HEAD
from passerelle.store.exports.member_file import MANIFEST
from passerelle.store.exports.tables.column import MONEY_DIGITS, MONEY_SCALE
from passerelle.store.exports.tables.session_rows import FORM, TABLES

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping, Sequence
    from pathlib import Path

    from passerelle.core.wire.json import JsonObject
    from passerelle.store.exports.tables.column import CellValue, ColumnKind, Table

# It has no types of its own that both checkers read.
pa: Final[Any] = import_module("pyarrow")
parquet: Final[Any] = import_module("pyarrow.parquet")

PART: Final = ".part"
FIELD: Final = "folder"
"""The field name of errors."""
_MODE: Final = 0o600
_FOLDER_MODE: Final = 0o700
_BATCH_ROWS: Final = 2_048
_BATCH_LETTERS: Final = 4 * 1024 * 1024
"""Characters of buffered rows that are Python objects."""
_GROUP_ROWS: Final = 131_072
_GROUP_BYTES: Final = 32 * 1024 * 1024
"""Bytes of rows buffered for their row group."""
_TYPES: Final[dict[ColumnKind, Any]] = {
    "text": pa.string(),
    "json": pa.string(),
    "time": pa.timestamp("ms", tz="UTC"),
    "count": pa.int64(),
    "money": pa.decimal128(MONEY_DIGITS, MONEY_SCALE),
    "flag": pa.bool_(),
}


def make_schema(table: Table[Any], said: Mapping[str, str]) -> Any:  # noqa: ANN401  a class of pyarrow
    """The schema of a table's file; ``said`` is added to its metadata, besides name and form."""
    fields = [
        pa.field(one.name, _TYPES[one.kind], one.optional, {"comment": one.meaning})
        for one in table.columns
    ]
    metadata = {"passerelle.table": table.name, "passerelle.form": str(FORM)}
    return pa.schema(
        fields, {**metadata, **{f"passerelle.{name}": one for name, one in said.items()}}
    )


class HashedFile(io.RawIOBase):
    """A sequentially written file, and its SHA-256. Raises OSError: it cannot be written."""

    def __init__(self, name: str, directory: int) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        self._descriptor = os.open(name, flags, _MODE, dir_fd=directory)
        self._digest = hashlib.sha256()
        self.size = 0
        self.is_given_up = False
        """Whether further writes are dropped, because the file is not needed any more."""

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self.size

    def write(self, piece: Any) -> int:  # noqa: ANN401  whatever has bytes
        left = view = memoryview(piece).cast("B")
        while left and not self.is_given_up:
            left = left[os.write(self._descriptor, left) :]
        self._digest.update(view)
        self.size += view.nbytes
        return view.nbytes

    @property
    def sha256(self) -> str:
        """The hash of everything written so far, in hex."""
        return self._digest.hexdigest()

    def sync(self) -> None:
        """Flushes the file to disk."""
        os.fsync(self._descriptor)

    def close(self) -> None:
        if not self.closed:
            os.close(self._descriptor)
        super().close()


@dataclass(slots=True)
class TableFile:
    """The file of one table. Its methods raise OSError."""

    table: Table[Any]
    schema: Any
    file: HashedFile
    rows: int = 0
    _writer: Any = field(init=False)
    _cells: list[tuple[CellValue, ...]] = field(default_factory=list["tuple[CellValue, ...]"])
    _letters: int = 0
    _batches: list[Any] = field(default_factory=list[Any])
    _waiting_rows: int = 0
    _waiting_bytes: int = 0

    def __post_init__(self) -> None:
        self._writer = parquet.ParquetWriter(self.file, self.schema, compression="zstd")

    def add(self, rows: Sequence[tuple[CellValue, ...]]) -> None:
        """Adds rows."""
        for row in rows:
            self._cells.append(row)
            self._letters += sum(len(cell) for cell in row if isinstance(cell, str))
            if len(self._cells) >= _BATCH_ROWS or self._letters >= _BATCH_LETTERS:
                self._pack()

    def finish(self) -> None:
        """Writes buffered rows and the footer, which completes the file, and flushes it to disk."""
        self._pack()
        self._write_group()
        self._writer.close()
        self.file.sync()

    def give_up(self) -> None:
        """Drops all further writes."""
        self.file.is_given_up = True
        # A writer that is left open writes its footer when it is collected.
        self._writer.close()

    def _pack(self) -> None:
        if not self._cells:
            return
        columns = zip(*self._cells, strict=True)
        arrays = [
            pa.array(cells, type=one.type) for cells, one in zip(columns, self.schema, strict=True)
        ]
        batch = pa.record_batch(arrays, schema=self.schema)
        self._batches.append(batch)
        self._waiting_rows += batch.num_rows
        self._waiting_bytes += batch.nbytes
        self._cells, self._letters = [], 0
        if self._waiting_rows >= _GROUP_ROWS or self._waiting_bytes >= _GROUP_BYTES:
            self._write_group()

    def _write_group(self) -> None:
        if not self._batches:
            return
        group = pa.Table.from_batches(self._batches, self.schema)
        self._writer.write_table(group, row_group_size=group.num_rows)
        self.rows += group.num_rows
        self._batches, self._waiting_rows, self._waiting_bytes = [], 0, 0


@frozen
class ParquetFolder:
    """Takes rows of all tables, and writes the description at the end. Its methods raise OSError."""

    directory: int
    files: dict[str, TableFile]

    def add_rows(self, rows: Mapping[str, Sequence[tuple[CellValue, ...]]]) -> None:
        """Adds the rows of a session, by the name of their table."""
        for name, added in rows.items():
            self.files[name].add(added)

    def finish(self, said: JsonObject) -> None:
        """Completes the folder; ``said`` is added to ``export.json``, besides the description of each file."""
        for one in self.files.values():
            one.finish()
        digests = {one.table.file: one.file.sha256 for one in self.files.values()}
        tables: JsonObject = {
            name: {
                "file": one.table.file,
                "rows": one.rows,
                "bytes": one.file.size,
                "sha256": one.file.sha256,
            }
            for name, one in self.files.items()
        }
        head = {"form": FORM, "format": "parquet", **said, "tables": tables}
        options = orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE
        digests[HEAD] = self._write(HEAD, orjson.dumps(head, option=options))
        lines = "".join(f"{digest}  {name}\n" for name, digest in digests.items())
        self._write(MANIFEST, lines.encode())
        # Renamed once all bytes are there, the manifest last.
        for name in (*digests, MANIFEST):
            os.rename(name + PART, name, src_dir_fd=self.directory, dst_dir_fd=self.directory)
        os.fsync(self.directory)

    def _write(self, name: str, content: bytes) -> str:
        with HashedFile(name + PART, self.directory) as file:
            file.write(content)
            file.sync()
            return file.sha256


@contextmanager
def open_folder(path: Path, said: Mapping[str, str]) -> Generator[ParquetFolder]:
    """A folder that takes rows, complete once ``finish`` was called; if this ends early nothing is left in it.

    It must be new or empty, or contain files of a killed export. ``said`` is added to the metadata of each file.

    Raises:
        InvalidInput: it is no folder, is not empty, is being written, or cannot be written.
    """
    try:
        is_new = _make(path)
        directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            _claim(path, directory)
            with ExitStack() as stack:
                stack.callback(_clean, path, directory, is_new=is_new)
                files = {
                    one.name: stack.enter_context(_open_table(directory, one, said))
                    for one in TABLES
                }
                yield ParquetFolder(directory, files)
        finally:
            os.close(directory)
    except OSError as error:
        raise InvalidInput(FIELD, f"{path}: {error.strerror or error}") from None


@contextmanager
def _open_table(directory: int, table: Table[Any], said: Mapping[str, str]) -> Generator[TableFile]:
    with HashedFile(table.file + PART, directory) as file:
        opened = TableFile(table, make_schema(table, said), file)
        try:
            yield opened
        finally:
            opened.give_up()


def _make(path: Path) -> bool:
    """Creates a folder, unless it exists; returns whether it was created."""
    try:
        path.mkdir(_FOLDER_MODE)
    except FileExistsError:
        if not path.is_dir():
            raise InvalidInput(FIELD, f"{path} is there already, and no folder") from None
        return False
    return True


_NAMES: Final = (*(table.file for table in TABLES), HEAD, MANIFEST)
_PARTS: Final = frozenset(name + PART for name in _NAMES)
_OWN: Final = _PARTS | {*_NAMES}


def _claim(path: Path, directory: int) -> None:
    """Refuses a folder that is not empty, or is being written to; removes files of a killed export."""
    try:
        fcntl.flock(directory, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise InvalidInput(FIELD, f"another export is being written to {path}") from None
    except OSError:
        pass  # a file system without locks: the operator must not start two exports at once
    names = set(os.listdir(directory))
    if MANIFEST in names:
        raise InvalidInput(FIELD, f"{path} has an export already")
    strangers = sorted(names - _PARTS)
    if strangers:
        was_stopped = ", of an export that was stopped: delete it" if names <= _OWN else ""
        raise InvalidInput(FIELD, f"{path} is not empty: it has {strangers[0]}{was_stopped}")
    for name in names:
        os.unlink(name, dir_fd=directory)


def _clean(path: Path, directory: int, *, is_new: bool) -> None:
    """Removes incomplete files."""
    names = set(os.listdir(directory))
    if MANIFEST in names:
        return
    for name in names & _OWN:
        os.unlink(name, dir_fd=directory)
    if is_new:
        with suppress(OSError):  # another process has put something there meanwhile
            path.rmdir()
