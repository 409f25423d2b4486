"""The data directory: private if it is the gateway's own, otherwise left alone."""

import asyncio
import errno
import stat
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from passerelle.cli.exit_status import ExitStatus, find_exit_status, find_hints
from passerelle.core.errors import ConfigInvalid, EngineFailed, StoreUnavailable
from passerelle.store.data_directory import (
    EngineStamp,
    lock_directory,
    make_data_directory,
    refuse_directory,
    write_stamp,
)
from passerelle.store.failures import REASONS


def read_mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def make_open(path: Path, *names: str) -> Path:
    path.mkdir()
    path.chmod(0o755)
    for name in names:
        (path / name).mkdir()
    return path


@pytest.mark.parametrize("names", [(), ("lost+found",), ("owner-token",), ("blobs", "notes")])
def test_empty_or_own_directory_becomes_private(tmp_path: Path, names: tuple[str, ...]) -> None:
    path = make_open(tmp_path / "data", *names)
    assert make_data_directory(path) == path.resolve()
    assert read_mode(path) == 0o700


def test_folder_that_others_use_is_refused_and_keeps_its_mode(tmp_path: Path) -> None:
    path = make_open(tmp_path / "home", "letters")
    with pytest.raises(ConfigInvalid, match="holds other files and is open to others"):
        make_data_directory(path)
    assert read_mode(path) == 0o755


def test_closed_folder_with_other_files_is_taken(tmp_path: Path) -> None:
    path = make_open(tmp_path / "closed", "letters")
    path.chmod(0o700)
    assert make_data_directory(path) == path.resolve()


@pytest.mark.parametrize("name", ["lock", "store.json"])
def test_unwritable_directory_is_reported_in_one_sentence(tmp_path: Path, name: str) -> None:
    """Whatever the reason and the user: a folder cannot be opened or replaced like a file."""
    (tmp_path / name / "in the way").mkdir(parents=True)
    stamp = EngineStamp("valkey", "9.1.2", 80, 1, "0a1b2c3d")
    write: Callable[[], object] = partial(write_stamp, tmp_path, stamp)
    if name == "lock":
        write = partial(asyncio.run, lock_directory(tmp_path))
    with pytest.raises(EngineFailed, match="cannot be written: Is a directory") as failed:
        write()
    assert find_exit_status(failed.value) is ExitStatus.REMOTE
    [hint] = find_hints(failed.value)
    assert "--data-dir" in hint


def test_full_disk_is_not_taken_for_a_missing_right() -> None:
    full = refuse_directory(Path("state"), OSError(errno.ENOSPC, "No space left on device"))
    assert "No space left" in str(full)
    assert find_hints(full) == ["make room on that disk, or name another --data-dir"]
    [hint] = find_hints(StoreUnavailable(REASONS["MISCONF"], "no"))
    assert hint.startswith("make room on the disk of the store: that of data_dir")
    [other] = find_hints(StoreUnavailable("no answer in time", "unknown"))
    assert "redis_url" in other
