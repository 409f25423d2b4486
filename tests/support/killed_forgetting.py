"""``python -m tests.support.killed_forgetting FOLDER WHAT STEP``: erases data, killed before its STEP-th change.

WHAT is an owner, or the time before which sessions have ended. Prints the number of changes if it completes.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from passerelle.cli.store_forget import choose_verb
from passerelle.gateway.settings.model import Settings
from passerelle.store.blobs import DirectoryBlobs
from passerelle.store.nodes import Nodes

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    Change = Callable[..., Awaitable[Any]]


def count_down(place: type, name: str, left: list[int]) -> None:
    """Makes each call of a method count down; the last one kills the process."""
    change: Change = getattr(place, name)

    async def change_or_die(*arguments: object) -> object:
        left[0] -= 1
        if left[0] == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return await change(*arguments)

    setattr(place, name, change_or_die)


def main(folder: str, what: str, step: str) -> None:
    """Runs as the command does."""
    left = [int(step)]
    for place, names in (
        (Nodes, ("run", "update")),
        (DirectoryBlobs, ("put", "expire", "replace")),
    ):
        for name in names:
            count_down(place, name, left)
    settings = Settings(data_dir=Path(folder))
    owner, before = (None, what) if what.endswith("Z") else (what, None)
    forget = choose_verb(owner, "default", None, before, ())
    asyncio.run(forget(settings, dry_run=False, confirm=lambda _lines: True))
    print(int(step) - left[0])  # noqa: T201  a command says what it did


if __name__ == "__main__":
    main(*sys.argv[1:])
