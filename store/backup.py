"""Copies the data directory of an embedded engine while a gateway uses it, and restores the copy elsewhere.

The engine is copied first, then keys and content, then tombstones. Content is stored before the engine refers to it and
kept for seven days after the last reference, so it still exists when it is copied later; content added meanwhile is
unreferenced and harmless. Content forgotten meanwhile is missing, but its tombstone, stored before, is in the copy: the
restored gateway applies it. ``backup.json`` is written last, with the hash of the manifest, which has that of each
file. A folder without it is no backup.
"""

from __future__ import annotations

import hashlib
import os
import re
import secrets
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

import orjson

from passerelle.core.errors import InvalidInput, StoreUnavailable
from passerelle.core.wire.times import format_ms
from passerelle.store.blobs import sync_directory

if TYPE_CHECKING:
    from collections.abc import Iterable

HEAD: Final = "backup.json"
MANIFEST: Final = "manifest.sha256"
_FORM: Final = 1
_ENGINE: Final = "appendonlydir"
_FILES_OF_ENGINE: Final = re.compile(rb"^file (\S+) seq [0-9]+ type [bi]$", re.MULTILINE)
_BLOBS: Final = "blobs"
_TOMBSTONES: Final = "forgotten"
_OF_A_PROCESS: Final = frozenset({"lock", "socket", "engine.log"})
"""Files that belong to a running gateway and not to its store."""
_TRIES: Final = 5
"""The engine rewrites its log once it has doubled: this happens at most once during a copy."""
_PIECE_BYTES: Final = 1024 * 1024
_LINE: Final = re.compile(r"([0-9a-f]{64})  (.+)")


class CopiedFile(NamedTuple):
    """A copied file: its SHA-256 in hex, and its size in bytes."""

    sha256: str
    bytes: int


@dataclass(slots=True)
class Backup:
    """A backup being made of ``source`` in the new folder ``target``."""

    source: Path
    target: Path
    version: str
    at_ms: int
    files: dict[str, CopiedFile] = field(default_factory=dict[str, "CopiedFile"])

    @property
    def bytes(self) -> int:
        """Total bytes of all files."""
        return sum(one.bytes for one in self.files.values())

    def make(self) -> None:
        """Copies everything; one call per instance.

        Raises:
            InvalidInput: ``directory`` is not empty, or cannot be written.
            StoreUnavailable: the engine has no log, or rewrote it during each try.
        """
        try:
            self.target.mkdir(mode=0o700, parents=True, exist_ok=True)
            if any(self.target.iterdir()):
                raise InvalidInput("directory", f"{self.target} is not empty")
            self.copy_engine()
            self._copy_files(path for path in self.source.iterdir() if path.is_file())
            tombstones = self.source / _BLOBS / _TOMBSTONES
            blobs = (self.source / _BLOBS).rglob("*")
            self._copy_files(path for path in blobs if not path.is_relative_to(tombstones))
            self._copy_files(tombstones.rglob("*"))
            self._finish()
        except OSError as error:
            reason = f"{error.filename or self.target}: {error.strerror or error}"
            raise InvalidInput("directory", reason) from None

    def copy_engine(self) -> None:
        """Copies the files of the engine's manifest until it stays the same: only the last file grows meanwhile."""
        folder = self.source / _ENGINE
        for _ in range(_TRIES):
            listed = next(
                (one for one in folder.glob("*.manifest") if not _is_transient(one)), None
            )
            if listed is None:
                break
            try:
                said = listed.read_bytes()
                names = [name.decode() for name in _FILES_OF_ENGINE.findall(said)]
                for name in names:
                    self._copy(folder / name)
                if listed.read_bytes() == said:
                    self._copy(listed)
                    return
            except FileNotFoundError:
                pass
            self._drop(folder)
        reason = "the engine has no append-only file, or keeps rewriting it"
        raise StoreUnavailable(reason, "no")

    def _drop(self, folder: Path) -> None:
        prefix = f"{folder.relative_to(self.source).as_posix()}/"
        self.files = {name: one for name, one in self.files.items() if not name.startswith(prefix)}
        shutil.rmtree(self.target / folder.relative_to(self.source), ignore_errors=True)

    def _copy_files(self, paths: Iterable[Path]) -> None:
        for path in paths:
            if _is_transient(path) or not path.is_file():
                continue
            try:
                self._copy(path)
            except FileNotFoundError:
                continue  # it expired after it was listed

    def _copy(self, path: Path) -> None:
        name = path.relative_to(self.source).as_posix()
        self.files[name] = copy_file(path, self.target / name)

    def _finish(self) -> None:
        for folder in {(self.target / name).parent for name in self.files}:
            sync_directory(folder)
        lines = "".join(f"{one.sha256}  {name}\n" for name, one in self.files.items()).encode()
        _write_file(self.target / MANIFEST, lines)
        head = {
            "form": _FORM,
            "version": self.version,
            "at": format_ms(self.at_ms),
            "manifest": hashlib.sha256(lines).hexdigest(),
        }
        _write_file(self.target / HEAD, orjson.dumps(head, option=orjson.OPT_INDENT_2))


def restore_backup(source: Path, data_dir: Path) -> int:
    """Restores a backup into a data directory that is empty or does not exist; returns the number of files.

    Each file is compared with the manifest. The directory appears once it is complete.

    Raises:
        InvalidInput: ``data_dir`` is not empty or cannot be created; or a file of the backup is missing or changed:
            ``field`` is then its name.
    """
    fresh = data_dir.with_name(f".{data_dir.name}.{secrets.token_hex(4)}")
    try:
        if data_dir.exists() and any(data_dir.iterdir()):
            raise InvalidInput("data_dir", f"{data_dir} is not empty")
        named = _read_manifest(source)
        data_dir.parent.mkdir(parents=True, exist_ok=True)
        fresh.mkdir(mode=0o700)
        for name, digest in named.items():
            _restore_file(source, fresh, name, digest)
        for folder in {(fresh / name).parent for name in named} | {fresh}:
            sync_directory(folder)
        # Replaces an empty directory, too.
        fresh.rename(data_dir)
        sync_directory(data_dir.parent)
    except OSError as error:
        reason = f"{data_dir} cannot be made: {error.strerror or error}"
        raise InvalidInput("data_dir", reason) from None
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
    return len(named)


def copy_file(source: Path, target: Path) -> CopiedFile:
    """Copies a file with its mode up to its current size, synced. Raises OSError."""
    digest, size = hashlib.sha256(), 0
    with source.open("rb") as read:
        target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        mode = os.fstat(read.fileno()).st_mode & 0o700
        descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, mode)
        with os.fdopen(descriptor, "wb") as written:
            left = os.fstat(read.fileno()).st_size
            while piece := read.read(min(left, _PIECE_BYTES)):
                written.write(piece)
                digest.update(piece)
                size += len(piece)
                left -= len(piece)
            written.flush()
            os.fsync(descriptor)
    return CopiedFile(digest.hexdigest(), size)


def _restore_file(source: Path, fresh: Path, name: str, digest: str) -> None:
    try:
        found = copy_file(source / name, fresh / name).sha256
    except FileNotFoundError:
        raise InvalidInput(
            name, f"is not in the backup {source}, whose manifest names it"
        ) from None
    if found != digest:
        raise InvalidInput(name, f"is not what the manifest of {source} says: it was changed")


def _read_manifest(source: Path) -> dict[str, str]:
    try:
        head = cast("dict[str, Any]", orjson.loads((source / HEAD).read_bytes()))
        form, digest = int(head["form"]), str(head["manifest"])
        if form > _FORM:
            raise InvalidInput(HEAD, f"is of form {form}, and this version knows {_FORM}")
        lines = (source / MANIFEST).read_bytes()
    except FileNotFoundError as error:
        reason = f"is not in {source}: it is no backup, or one that was not ended"
        raise InvalidInput(Path(error.filename).name, reason) from None
    except (LookupError, TypeError, ValueError) as error:
        raise InvalidInput(HEAD, f"is damaged: {error}") from None
    if hashlib.sha256(lines).hexdigest() != digest:
        raise InvalidInput(MANIFEST, f"is not what {HEAD} says: it was changed")
    named = dict[str, str]()
    for line in lines.decode().splitlines():
        match = _LINE.fullmatch(line)
        if match is None or ".." in match[2].split("/") or match[2].startswith("/"):
            raise InvalidInput(MANIFEST, f"is damaged: {line[:80]!r}")
        named[match[2]] = match[1]
    return named


def _write_file(path: Path, content: bytes) -> None:
    fresh = path.with_name(f"{path.name}.part")
    with fresh.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    fresh.rename(path)
    sync_directory(path.parent)


def _is_transient(path: Path) -> bool:
    """Whether a file belongs to a running gateway or engine, or is being written."""
    is_unfinished = path.suffix == ".part" or path.name.startswith("temp-")
    return path.name in _OF_A_PROCESS or is_unfinished
