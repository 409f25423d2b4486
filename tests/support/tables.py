"""Reads exported tables with pyarrow, independently of the code that wrote them."""

from __future__ import annotations

import hashlib
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import orjson

Row = dict[str, Any]
NAMES: Final = ("tasks", "attempts", "events", "approvals", "costs")
parquet: Final[Any] = import_module("pyarrow.parquet")


def read_table(folder: Path, name: str) -> list[Row]:
    """The rows of a table."""
    rows: list[Row] = parquet.read_table(folder / f"{name}.parquet").to_pylist()
    return rows


def read_tables(folder: Path) -> dict[str, list[Row]]:
    """The rows of all tables of a complete export."""
    check_whole(folder)
    return {name: read_table(folder, name) for name in NAMES}


def check_whole(folder: Path) -> None:
    """Checks the files against the manifest: none is missing or extra, and row counts match."""
    lines = (folder / "manifest.sha256").read_text("ascii").splitlines()
    digests = {name: digest for digest, _, name in (line.partition("  ") for line in lines)}
    assert {one.name for one in folder.iterdir()} == {*digests, "manifest.sha256"}
    for name, digest in digests.items():
        assert hashlib.sha256((folder / name).read_bytes()).hexdigest() == digest
    manifest = orjson.loads((folder / "export.json").read_bytes())
    assert {*manifest["tables"]} == {*NAMES}
    for name, said in manifest["tables"].items():
        file = folder / said["file"]
        assert parquet.ParquetFile(file).metadata.num_rows == said["rows"], name
        assert (file.stat().st_size, said["sha256"]) == (said["bytes"], digests[said["file"]])


def list_sessions(tables: dict[str, list[Row]]) -> set[str]:
    """Ids of the sessions that have a row."""
    return {row["session_id"] for rows in tables.values() for row in rows}
