"""Which engine is started: the order of the search, and that a wrong setting is an error."""

from __future__ import annotations

from pathlib import Path

import pytest

from passerelle.core.errors import EngineFailed
from passerelle.store.engine_binary import find_engine, probe
from passerelle.store.server_version import parse_version


def pretend(folder: Path, name: str, banner: str) -> Path:
    path = folder / name
    path.write_text(f"#!/bin/sh\necho '{banner}'\n", encoding="ascii")
    path.chmod(0o755)
    return path


def nothing() -> None:
    return None


REDIS_6 = "Redis server v=6.2.14 sha=0:0 malloc=x bits=64"
REDIS_7 = "Redis server v=7.0.15 sha=0:0 malloc=x bits=64"
VALKEY_8 = "Valkey server v=8.1.8 sha=0:0 malloc=x bits=64"


def test_configured_path_comes_first(tmp_path: Path) -> None:
    chosen = pretend(tmp_path, "mine", REDIS_7)
    binary = find_engine(chosen)
    assert (binary.path, binary.name, binary.version) == (chosen, "redis", (7, 0, 15))


@pytest.mark.parametrize("banner", ["something else", REDIS_6])
def test_configured_path_that_is_no_use_is_an_error(tmp_path: Path, banner: str) -> None:
    with pytest.raises(EngineFailed, match="engine_path"):
        find_engine(pretend(tmp_path, "mine", banner))
    with pytest.raises(EngineFailed, match="does not run"):
        find_engine(tmp_path / "nothing")


def test_packaged_engine_comes_before_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(tmp_path, "valkey-server", VALKEY_8)
    monkeypatch.setenv("PATH", str(tmp_path))
    inside = pretend(tmp_path, "inside", REDIS_7)
    assert find_engine(None, lambda: inside).path == inside


def test_valkey_on_path_comes_before_redis(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    pretend(tmp_path, "redis-server", REDIS_7)
    assert find_engine(None, nothing).name == "redis"
    pretend(tmp_path, "valkey-server", VALKEY_8)
    assert find_engine(None, nothing).version_text == "8.1.8"


def test_without_any_engine_both_ways_out_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(EngineFailed, match=r"install .* or name a server with --redis-url"):
        find_engine(None, nothing)
    pretend(tmp_path, "redis-server", REDIS_6)
    with pytest.raises(EngineFailed, match=r"older than 7\.0"):
        find_engine(None, nothing)


def test_package_brings_an_engine_of_its_own() -> None:
    binary = find_engine(None)
    assert (binary.name, binary.version >= (9, 1, 2)) == ("valkey", True)


def test_version_text_is_read_as_numbers(tmp_path: Path) -> None:
    assert [parse_version(text) for text in ("9.1.2", "7.0", "8", "", "7.4.x")] == [
        (9, 1, 2),
        (7, 0, 0),
        (8, 0, 0),
        (0, 0, 0),
        (7, 4, 0),
    ]
    assert probe(tmp_path) is None
