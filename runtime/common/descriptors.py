"""Whether this process has file descriptors left. Without any it can neither accept connections nor reach agents."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

import structlog

if TYPE_CHECKING:
    from collections.abc import Callable

_LEFT: Final = 8
"""Fewer free descriptors count as none: one call to an agent may take several."""


class Descriptors:
    """Checked once a second, and by each probe; ``read_limit`` returns None if there is no limit."""

    def __init__(self, read_limit: Callable[[], int | None]) -> None:
        self._read_limit = read_limit
        self._were_out = False

    def are_out(self) -> bool:
        """Whether they are used up. The system assigns the lowest free number, so opening one file shows it."""
        limit = self._read_limit()
        if limit is None:
            return False
        try:
            number = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return True
        os.close(number)
        return number >= limit - _LEFT

    def watch(self) -> None:
        """Logs when they run out, and when some are free again."""
        are_out = self.are_out()
        if are_out == self._were_out:
            return
        self._were_out = are_out
        log = structlog.get_logger("passerelle")
        if are_out:
            log.error("server.out_of_descriptors", limit=self._read_limit())
        else:
            log.info("server.descriptors_again", limit=self._read_limit())
