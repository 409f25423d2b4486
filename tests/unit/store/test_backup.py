"""A copy of a data directory while its engine rewrites files."""

from __future__ import annotations

from pathlib import Path

import pytest

from passerelle.core.errors import StoreUnavailable
from passerelle.store import backup
from passerelle.store.backup import Backup, CopiedFile, restore_backup

LOG = "appendonlydir/appendonly.aof"
SAID = b"file appendonly.aof.1.base.rdb seq 1 type b\nfile appendonly.aof.1.incr.aof seq 1 type i\n"


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "data" / "appendonlydir"
    folder.mkdir(parents=True)
    (folder / "appendonly.aof.1.base.rdb").write_bytes(b"base" * 10)
    (folder / "appendonly.aof.1.incr.aof").write_bytes(b"more" * 10)
    (folder / "appendonly.aof.manifest").write_bytes(SAID)
    return folder.parent


def make(source: Path, target: Path) -> Backup:
    made = Backup(source, target, "0", 1_700_000_000_000)
    made.make()
    return made


def test_manifest_that_the_engine_is_about_to_rename_is_none(source: Path, tmp_path: Path) -> None:
    (source / "appendonlydir" / "temp-appendonly.aof.manifest").write_bytes(SAID[:20])
    made = make(source, tmp_path / "copy")
    assert {name for name in made.files if name.startswith("appendonlydir/")} == {
        f"{LOG}.manifest",
        f"{LOG}.1.base.rdb",
        f"{LOG}.1.incr.aof",
    }
    assert restore_backup(tmp_path / "copy", tmp_path / "restored") == 3


def test_log_that_is_rewritten_during_a_backup_is_copied_again_and_counted_once(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, copy, copied = source / "appendonlydir", backup.copy_file, list[str]()

    def copy_file(read: Path, written: Path) -> CopiedFile:
        copied.append(read.name)
        if len(copied) == 2:
            (folder / "appendonly.aof.2.base.rdb").write_bytes(b"anew" * 30)
            (folder / "appendonly.aof.2.incr.aof").write_bytes(b"")
            (folder / "appendonly.aof.manifest").write_bytes(SAID.replace(b".1.", b".2."))
        return copy(read, written)

    monkeypatch.setattr(backup, "copy_file", copy_file)
    made = make(source, tmp_path / "copy")
    found = {
        path.relative_to(tmp_path / "copy").as_posix(): path.stat().st_size
        for path in (tmp_path / "copy").rglob("*")
        if path.is_file() and path.parent != tmp_path / "copy"
    }
    assert found == {
        f"{LOG}.manifest": len(SAID),
        f"{LOG}.2.base.rdb": 120,
        f"{LOG}.2.incr.aof": 0,
    }
    assert made.bytes == sum(found.values())


def test_data_directory_without_a_log_is_refused(source: Path, tmp_path: Path) -> None:
    (source / "appendonlydir" / "appendonly.aof.manifest").unlink()
    with pytest.raises(StoreUnavailable, match="append-only file"):
        make(source, tmp_path / "copy")
    assert not (tmp_path / "copy" / "backup.json").exists()
