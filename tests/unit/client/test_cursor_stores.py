"""Stores of cursors."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

from passerelle.client.cursor_stores import FileCursors, MemoryCursors, SqliteCursors


def test_a_file_gives_back_whole_cursors_to_the_next_process(tmp_path: Path) -> None:
    path = tmp_path / "cursors.json"
    first = FileCursors(path)
    assert first.load("inbox") is None
    first.save("inbox", "6a77b89f.1.d1b96cc6")
    first.save("session:x", "6a77b89f.2.d1b96cc6")
    first.save("inbox", "6a77b89f.3.d1b96cc6")
    second = FileCursors(path)
    assert second.load("inbox") == "6a77b89f.3.d1b96cc6"
    assert second.load("session:x") == "6a77b89f.2.d1b96cc6"
    assert [entry.name for entry in tmp_path.iterdir()] == ["cursors.json"]


def test_memory_forgets_with_the_process() -> None:
    cursors = MemoryCursors()
    cursors.save("inbox", "6a77b89f.1.d1b96cc6")
    assert cursors.load("inbox") == "6a77b89f.1.d1b96cc6"
    assert MemoryCursors().load("inbox") is None


def test_a_database_gives_back_whole_cursors_to_the_next_process(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    with closing(SqliteCursors(path)) as first:
        assert first.load("inbox") is None
        first.save("inbox", "6a77b89f.1.d1b96cc6")
        first.save("session:x", "6a77b89f.2.d1b96cc6")
        first.save("inbox", "6a77b89f.3.d1b96cc6")
        with closing(SqliteCursors(str(path))) as second:
            assert second.load("inbox") == "6a77b89f.3.d1b96cc6"
            assert second.load("session:x") == "6a77b89f.2.d1b96cc6"


def test_a_cursor_in_the_applications_database_is_stored_with_its_state_or_not_at_all(
    tmp_path: Path,
) -> None:
    path = tmp_path / "state.db"
    with closing(sqlite3.connect(path)) as database:
        cursors = SqliteCursors(database)
        database.execute("CREATE TABLE state (event TEXT)")
        with database:
            database.execute("INSERT INTO state VALUES ('first')")
            cursors.save("inbox", "6a77b89f.1.d1b96cc6")
        database.execute("INSERT INTO state VALUES ('second')")
        cursors.save("inbox", "6a77b89f.2.d1b96cc6")
        database.rollback()
    with closing(SqliteCursors(path)) as left:
        assert left.load("inbox") == "6a77b89f.1.d1b96cc6"
