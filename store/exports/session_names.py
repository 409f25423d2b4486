"""Session ids by shard: a store may have millions, so beyond a few thousand per shard they are kept on disk."""

from __future__ import annotations

import tempfile
from contextlib import ExitStack, contextmanager
from typing import IO, TYPE_CHECKING, Final

from passerelle.core.ids import ALL_SHARDS, shard_of

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path

    from passerelle.core.ids import Shard

_KEPT_BYTES: Final = 128 * 1024
"""Bytes of ids of one shard kept in memory."""


class SessionNames:
    """Added ids. An id may be added twice, and is listed once."""

    def __init__(self, files: dict[Shard, IO[bytes]]) -> None:
        self._files = files

    def add(self, session: str) -> None:
        """Adds an id. Raises OSError: the disk is full."""
        self._files[shard_of(session)].write(session.encode() + b"\n")

    def list(self, shard: Shard) -> set[str]:
        """The added ids of a shard. Raises OSError."""
        file = self._files[shard]
        file.seek(0)
        return {line.decode().rstrip("\n") for line in file}


@contextmanager
def open_names(folder: Path) -> Generator[SessionNames]:
    """An empty list, whose unnamed files are in ``folder`` and vanish at the end."""
    with ExitStack() as stack:
        yield SessionNames(
            {
                shard: stack.enter_context(
                    tempfile.SpooledTemporaryFile(max_size=_KEPT_BYTES, dir=str(folder))
                )
                for shard in ALL_SHARDS
            }
        )
