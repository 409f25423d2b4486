"""The stamp of a data directory: which engine may open it next."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from passerelle.cli.exit_status import find_hints
from passerelle.core.errors import EngineFailed
from passerelle.store.data_directory import (
    EngineStamp,
    read_rdb_version,
    read_stamp,
    refuse_mismatch,
    write_stamp,
)
from passerelle.store.engine_binary import EngineBinary
from passerelle.store.keys import SCHEMA
from passerelle.store.server_version import EngineName, ServerVersion

STAMP = EngineStamp("valkey", "8.1.8", 11, SCHEMA, "0a1b2c3d")


def engine(name: EngineName, version: ServerVersion) -> EngineBinary:
    return EngineBinary(Path("/x"), name, version)


@pytest.mark.parametrize(
    ("before", "name", "version", "opens"),
    [
        (("valkey", "8.1.8"), "valkey", (8, 1, 8), True),
        (("valkey", "8.1.8"), "valkey", (9, 1, 2), True),
        (("valkey", "9.1.2"), "valkey", (8, 1, 8), False),
        (("valkey", "9.1.2"), "redis", (7, 0, 15), False),
        (("valkey", "8.0.0"), "redis", (8, 2, 0), False),
        (("redis", "7.0.15"), "valkey", (9, 1, 2), True),
        (("redis", "7.2.4"), "redis", (7, 0, 15), False),
        (("redis", "7.4.0"), "valkey", (9, 1, 2), False),
    ],
)
def test_directory_opens_forward_only(
    before: tuple[str, str], name: EngineName, version: ServerVersion, *, opens: bool
) -> None:
    stamp = replace(STAMP, engine=before[0], version=before[1])
    if opens:
        refuse_mismatch(stamp, engine(name, version))
    else:
        with pytest.raises(EngineFailed, match="cannot read it safely") as refused:
            refuse_mismatch(stamp, engine(name, version))
        [hint] = find_hints(refused.value)
        assert hint == f"name that engine or a newer {before[0]} with engine_path"


def test_new_directory_opens_with_anything() -> None:
    refuse_mismatch(None, engine("redis", (7, 0, 0)))


def test_newer_schema_is_refused() -> None:
    with pytest.raises(EngineFailed, match="schema") as refused:
        refuse_mismatch(replace(STAMP, schema=SCHEMA + 1), engine("valkey", (9, 1, 2)))
    assert find_hints(refused.value) == [
        "start the version of passerelle that wrote it, or a newer one: there is no way back"
    ]


def test_stamp_comes_back_and_leaves_no_other_file(tmp_path: Path) -> None:
    assert read_stamp(tmp_path) is None
    write_stamp(tmp_path, STAMP)
    write_stamp(tmp_path, replace(STAMP, version="9.0.0"))
    assert read_stamp(tmp_path) == replace(STAMP, version="9.0.0")
    assert [path.name for path in tmp_path.iterdir()] == ["store.json"]


@pytest.mark.parametrize("content", [b"", b"[]", b"{}", b'{"engine":"valkey"}', b"\xff"])
def test_damaged_stamp_is_an_error_and_not_a_new_directory(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "store.json").write_bytes(content)
    with pytest.raises(EngineFailed, match="damaged") as refused:
        read_stamp(tmp_path)
    [hint] = find_hints(refused.value)
    assert hint.startswith("take store.json of a backup")


@pytest.mark.parametrize(
    ("head", "version"), [(b"REDIS0010xx", 10), (b"VALKEY080x", 80), (b"other", 0)]
)
def test_format_version_is_read_from_the_base_file(
    tmp_path: Path, head: bytes, version: int
) -> None:
    assert read_rdb_version(tmp_path) == 0
    folder = tmp_path / "appendonlydir"
    folder.mkdir()
    (folder / "appendonly.aof.1.base.rdb").write_bytes(head)
    assert read_rdb_version(tmp_path) == version
