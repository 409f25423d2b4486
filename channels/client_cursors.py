"""Where a client keeps its cursors between runs: whole texts, saved after the application took the item."""

from __future__ import annotations

import os
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
