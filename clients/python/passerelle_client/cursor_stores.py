"""Where a client keeps its cursors between runs: whole texts, saved after the application took the item."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path
from typing import Protocol

import orjson


class Cursors(Protocol):
    """A store of cursors by stream. Put it into the transaction of the state that it belongs to where you can."""

    def load(self, stream: str) -> str | None:
        """The cursor that was saved last, or None."""
        ...

    def save(self, stream: str, cursor: str) -> None:
        """Keeps a cursor; called once the application has taken the item that it belongs to."""
        ...


class MemoryCursors:
    """Cursors for as long as the process lives."""

    def __init__(self) -> None:
        self._cursors: dict[str, str] = {}

    def load(self, stream: str) -> str | None:
        return self._cursors.get(stream)

    def save(self, stream: str, cursor: str) -> None:
        self._cursors[stream] = cursor


class FileCursors:
    """Cursors in one JSON file, replaced as a whole so that a crash leaves the old one or the new one."""

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
        os.replace(fresh, self._path)  # noqa: PTH105 - the rename that replaces, by its own name


class SqliteCursors:
    """Cursors in the table ``passerelle_cursors`` of a SQLite database.

    With a path each save is a transaction of its own. With a connection nothing is committed here: the cursor goes into
    the transaction that the application keeps its state in, so that both are stored or neither.
    """

    def __init__(self, database: Path | str | sqlite3.Connection) -> None:
        """Makes the table where it is missing. Raises sqlite3.Error where the database cannot be used."""
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
        """Closes the database, also one that was handed in."""
        self._database.close()
