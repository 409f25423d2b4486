"""The data directory of an embedded engine, and the lock that keeps a second gateway out.

The lock belongs to the open file description, and the engine inherits the descriptor: it is free only
when both the gateway and its engine are gone. Without that, a gateway restarted milliseconds after a
kill could open a file that the dying engine still writes.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from passerelle.core.errors import ConfigInvalid, DirectoryInUse, EngineFailed

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

LOCK_RETRY_S: Final = 3.0
_RETRY_EVERY_S: Final = 0.05
_MODE: Final = 0o700
FOR_OTHERS: Final = 0o077
"""Rights that nobody but the owner has."""
_OURS: Final = frozenset(
    {"lock", "store.json", "blobs", "owner-token", "secret-key", "appendonlydir"}
)
_OF_NOBODY: Final = frozenset({"lost+found"})


@dataclass(frozen=True, slots=True)
class DirectoryLock:
    """A held lock; ``descriptor`` is passed on to the engine."""

    path: Path
    descriptor: int

    def release(self) -> None:
        """Gives up this process's share; the last act of a shutdown."""
        os.close(self.descriptor)


def make_data_directory(path: Path) -> Path:
    """Creates the directory with mode 0700, also where ours had been made wider, and returns it resolved.

    A folder that others use is left as it is: to close ``/tmp`` or a home would harm all of them.

    Raises:
        ConfigInvalid: the directory cannot be made or used, or is somebody else's.
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
    """Whether a folder has files, and none that a gateway makes."""
    names = {entry.name for entry in path.iterdir()} - _OF_NOBODY
    return bool(names) and not names & _OURS


async def lock_directory(directory: Path, retry_s: float = LOCK_RETRY_S) -> DirectoryLock:
    """Takes the exclusive lock, waiting up to ``retry_s`` for a predecessor that is going away.

    Raises:
        DirectoryInUse: somebody else holds it; names the directory and the process id in the file.
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
    """What it means that something cannot be written to a data directory."""
    message = f"the data directory {directory} cannot be written: {error.strerror or error}"
    hint = (
        "give this user the right to write there, mount it for writing, or name another --data-dir"
    )
    return EngineFailed(message, hint=hint, path=str(directory))


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
    """Takes the rights of others from files that an earlier version has left open.

    Raises:
        OSError: one of them is not ours.
    """
    for file in files:
        mode = file.stat().st_mode
        if mode & FOR_OTHERS:
            file.chmod(mode & ~FOR_OTHERS)
