"""The data directory of an embedded engine: its lock, and the stamp of the last engine that opened it.

The lock belongs to the open file description, and the engine inherits the descriptor: it is free only when both the
gateway and its engine are gone. Without that, a gateway restarted milliseconds after a kill could open a file that the
dying engine still writes.

``store.json`` is the stamp, by which an older engine is refused. An older engine does not always fail by itself: Redis
6.2 ignores the directory of a multi-part AOF and starts empty without an error. Forward works (Valkey 9.1 opens a
directory of Redis 7.0), backward never.
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
import re
from dataclasses import asdict
from typing import TYPE_CHECKING, Final

import orjson

from passerelle.core.errors import ConfigInvalid, DirectoryInUse, EngineFailed
from passerelle.core.frozen import frozen
from passerelle.store.engine_binary import EngineBinary
from passerelle.store.keys import SCHEMA
from passerelle.store.server_version import parse_version

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

LOCK_RETRY_S: Final = 3.0
_RETRY_EVERY_S: Final = 0.05
_MODE: Final = 0o700
FOR_OTHERS: Final = 0o077
"""Permission bits of group and others."""
_OURS: Final = frozenset(
    {"lock", "store.json", "blobs", "owner-token", "secret-key", "appendonlydir"}
)
_SYSTEM_ENTRIES: Final = frozenset({"lost+found"})


@frozen
class DirectoryLock:
    """A held lock; the engine inherits ``descriptor``."""

    path: Path
    descriptor: int

    def release(self) -> None:
        """Releases this process's share; the last step of a shutdown."""
        os.close(self.descriptor)


def make_data_directory(path: Path) -> Path:
    """Creates the directory with mode 0700, restricting wider permissions, and returns its resolved path.

    A folder with foreign files is left as it is: restricting ``/tmp`` or a home directory would harm other users.

    Raises:
        ConfigInvalid: the directory cannot be created or used, or has foreign files.
    """
    try:
        path.mkdir(mode=_MODE, parents=True, exist_ok=True)
        if path.stat().st_mode & FOR_OTHERS:
            if _is_foreign(path):
                raise ConfigInvalid(
                    "data_dir",
                    f"{path} holds other files and is open to others; name a folder of its own",
                )
            path.chmod(_MODE)
        return path.resolve()
    except OSError as error:
        raise ConfigInvalid("data_dir", f"{path}: {error.strerror or error}") from error


def _is_foreign(path: Path) -> bool:
    """Whether a folder has files, but none that a gateway creates."""
    names = {entry.name for entry in path.iterdir()} - _SYSTEM_ENTRIES
    return bool(names) and not names & _OURS


async def lock_directory(directory: Path, retry_s: float = LOCK_RETRY_S) -> DirectoryLock:
    """Takes the exclusive lock, waiting up to ``retry_s`` for a predecessor that is shutting down.

    Raises:
        DirectoryInUse: another process holds it; names the directory and the process id in the file.
        EngineFailed: the directory cannot be written.
    """
    path = directory / "lock"
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise refuse_directory(directory, error) from error
    deadline = asyncio.get_running_loop().time() + retry_s
    try:
        while not _try_lock(descriptor):
            if asyncio.get_running_loop().time() >= deadline:
                raise DirectoryInUse(str(directory), _read_owner(path))
            await asyncio.sleep(_RETRY_EVERY_S)
        os.truncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
    except BaseException:
        os.close(descriptor)
        raise
    return DirectoryLock(path, descriptor)


def refuse_directory(directory: Path, error: OSError) -> EngineFailed:
    """The error for a data directory that cannot be written."""
    message = f"the data directory {directory} cannot be written: {error.strerror or error}"
    if error.errno in {errno.ENOSPC, errno.EDQUOT}:
        hint = "make room on that disk, or name another --data-dir"
    else:
        hint = "give this user the right to write there, mount it for writing, or name another --data-dir"
    return EngineFailed(message, hint=hint, path=str(directory))


async def is_in_use(directory: Path, look_s: float) -> bool:
    """Whether a gateway or its engine holds the lock of a directory for at least ``look_s`` seconds."""
    try:
        lock = await lock_directory(directory, look_s)
    except DirectoryInUse:
        return True
    lock.release()
    return False


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _read_owner(path: Path) -> str:
    text = path.read_text(encoding="ascii", errors="replace").strip()
    return text if text.isdigit() else "unknown"


def close_to_others(files: Iterable[Path]) -> None:
    """Removes permissions of group and others from files that an earlier version created with them.

    Raises:
        OSError: one of them has another owner.
    """
    for file in files:
        mode = file.stat().st_mode
        if mode & FOR_OTHERS:
            file.chmod(mode & ~FOR_OTHERS)


_FILE: Final = "store.json"
_MAGIC: Final = re.compile(rb"(?:REDIS(\d{4})|VALKEY(\d{3}))")
_FIRST_CLOSED_REDIS: Final = (7, 4, 0)
"""From this version on the file formats of the two engines differ."""


@frozen
class EngineStamp:
    """``epoch`` is drawn once per data directory; ``rdb_version`` is 0 if there was no base file to read it from."""

    engine: str
    version: str
    rdb_version: int
    schema: int
    epoch: str


def read_stamp(directory: Path) -> EngineStamp | None:
    """The stamp, or None for a directory that was never opened.

    Raises:
        EngineFailed: the file exists and cannot be read.
    """
    path = directory / _FILE
    try:
        fields = orjson.loads(path.read_bytes())
        return EngineStamp(
            engine=str(fields["engine"]),
            version=str(fields["version"]),
            rdb_version=int(fields["rdb_version"]),
            schema=int(fields["schema"]),
            epoch=str(fields["epoch"]),
        )
    except FileNotFoundError:
        return None
    except (orjson.JSONDecodeError, KeyError, TypeError, ValueError) as error:
        message = f"{path} is damaged: {error!r}"
        hint = (
            "take store.json of a backup of this directory: it says which engine may open the data"
        )
        raise EngineFailed(message, hint=hint, path=str(path)) from error


def write_stamp(directory: Path, stamp: EngineStamp) -> None:
    """Replaces the stamp in one step, after a successful start.

    Raises:
        EngineFailed: the directory cannot be written.
    """
    path = directory / _FILE
    fresh = directory / f"{_FILE}.{os.getpid()}"
    try:
        descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            os.write(descriptor, orjson.dumps(asdict(stamp), option=orjson.OPT_INDENT_2))
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        fresh.replace(path)
    except OSError as error:
        raise refuse_directory(directory, error) from error


def refuse_mismatch(stamp: EngineStamp | None, binary: EngineBinary) -> None:
    """Raises unless an engine can read everything that the last one wrote.

    Raises:
        EngineFailed: the engine is older than the stamp, of the other family, or the schema is newer than known here.
    """
    if stamp is None:
        return
    if stamp.schema > SCHEMA:
        message = f"the data directory has schema {stamp.schema}, this version knows {SCHEMA}"
        hint = "start the version of passerelle that wrote it, or a newer one: there is no way back"
        raise EngineFailed(message, hint=hint)
    if not _can_open(stamp, binary):
        message = (
            f"the data directory was last opened by {stamp.engine} {stamp.version};"
            f" {binary.name} {binary.version_text} at {binary.path} cannot read it safely"
        )
        hint = f"name that engine or a newer {stamp.engine} with engine_path"
        raise EngineFailed(message, hint=hint, engine=binary.name, version=binary.version_text)


def stamp_start(
    directory: Path, stamp: EngineStamp | None, binary: EngineBinary, epoch: str
) -> None:
    """Writes the stamp of a successful start with ``binary``; ``epoch`` is used for a new directory only."""
    write_stamp(
        directory,
        EngineStamp(
            engine=binary.name,
            version=binary.version_text,
            rdb_version=read_rdb_version(directory),
            schema=SCHEMA,
            epoch=stamp.epoch if stamp is not None else epoch,
        ),
    )


def read_rdb_version(directory: Path) -> int:
    """The format version in the head of the newest base file; 0 if there is none."""
    bases = sorted(
        (directory / "appendonlydir").glob("*.base.rdb"), key=lambda path: path.stat().st_mtime
    )
    if not bases:
        return 0
    with bases[-1].open("rb") as file:
        match = _MAGIC.match(file.read(9))
    return int(match[1] or match[2]) if match else 0


def _can_open(stamp: EngineStamp, binary: EngineBinary) -> bool:
    before = parse_version(stamp.version)
    if stamp.engine == binary.name:
        return binary.version >= before
    return stamp.engine == "redis" and before < _FIRST_CLOSED_REDIS
