"""Stores for a client's cursors between runs. A cursor is a text, saved after the application processed the item."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path
from typing import Protocol

import orjson


class Cursors(Protocol):
    """A store of cursors by stream. If you can, save a cursor in the transaction of its state."""

    def load(self, stream: str) -> str | None:
        """Returns the last saved cursor, or None."""
        ...

    def save(self, stream: str, cursor: str) -> None:
        """Saves a cursor; called once the application has processed its item."""
        ...


class MemoryCursors:
    """Cursors in memory; they are lost with the process."""

    def __init__(self) -> None:
        self._cursors: dict[str, str] = {}

    def load(self, stream: str) -> str | None:
        return self._cursors.get(stream)

    def save(self, stream: str, cursor: str) -> None:
        self._cursors[stream] = cursor


class FileCursors:
    """Cursors in one JSON file, replaced atomically: a crash leaves the old or the new one."""

    def __init__(self, path: Path | str) -> None:
        self._path = Path(path)
        self._cursors: dict[str, str] = (
            orjson.loads(self._path.read_bytes()) if self._path.exists() else {}
        )

    def load(self, stream: str) -> str | None:
        return self._cursors.get(stream)

    def save(self, stream: str, cursor: str) -> None:
        self._cursors[stream] = cursor
        fresh = self._path.with_name(f"{self._path.name}.new")
        fresh.write_bytes(orjson.dumps(self._cursors))
        os.replace(fresh, self._path)  # noqa: PTH105 - os.replace renames and overwrites


class SqliteCursors:
    """Cursors in the table ``passerelle_cursors`` of a SQLite database.

    With a path, each save is its own transaction. With a connection, the store commits nothing: the cursor joins the
    transaction in which the application stores its state, so both are stored or neither.
    """

    def __init__(self, database: Path | str | sqlite3.Connection) -> None:
        """Creates the table if it is missing. Raises sqlite3.Error if the database cannot be used."""
        self._database = (
            database
            if isinstance(database, sqlite3.Connection)
            else sqlite3.connect(database, isolation_level=None)
        )
        self._database.execute(
            "CREATE TABLE IF NOT EXISTS passerelle_cursors"
            " (stream TEXT PRIMARY KEY, cursor TEXT NOT NULL) WITHOUT ROWID"
        )

    def load(self, stream: str) -> str | None:
        query = "SELECT cursor FROM passerelle_cursors WHERE stream = ?"
        row: tuple[str] | None = self._database.execute(query, (stream,)).fetchone()
        return None if row is None else row[0]

    def save(self, stream: str, cursor: str) -> None:
        self._database.execute(
            "INSERT INTO passerelle_cursors VALUES (?, ?)"
            " ON CONFLICT (stream) DO UPDATE SET cursor = excluded.cursor",
            (stream, cursor),
        )

    def close(self) -> None:
        """Closes the database, including a connection that was passed in."""
        self._database.close()
