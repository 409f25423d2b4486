"""Cursors that are verified, never only compared: no gap is silent (I8).

A cursor reads ``<epoch>.<sequence>.<chain>`` and names a position in one history. The chain is a running hash over
event ids (``core.event_chain``). Event ``n`` has ``chain(n-1)`` with it, the head stores the chain of the top, so a
position is proven by its successor, or by the head when it has none. After a lost tail the epoch is the same and
sequences are used again: only the chain tells the two histories apart.

Clients store and return the whole text and never combine parts of two cursors.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from passerelle.core.errors import BadCursor

_TEXT: Final = re.compile(r"([0-9a-f]{8})\.(0|[1-9][0-9]{0,15})\.([0-9a-f]{8})", re.ASCII)


@dataclass(frozen=True, slots=True)
class Cursor:
    """A position after ``sequence``; sequence 0 is the beginning."""

    epoch: str
    sequence: int
    chain: str

    def __str__(self) -> str:
        return f"{self.epoch}.{self.sequence}.{self.chain}"


class GapReason(StrEnum):
    """Why a cursor cannot be honoured exactly."""

    TRIMMED = "trimmed"
    """Retention archived what follows the cursor."""
    EPOCH = "epoch"
    """The stream was made anew."""
    AHEAD = "ahead"
    """Beyond the end: acknowledged writes were lost."""
    FORKED = "forked"
    """The sequence exists, with another history."""
    LOST = "lost"
    """Head or entries are missing, and no trim says why."""
    LIMIT = "limit"
    """More missed events than the replay limit."""
    SLOW = "slow"
    """Fell behind the ring and beyond the replay limit while open."""


def parse_cursor(text: str, field: str = "cursor") -> Cursor:
    """Reads a cursor text of at most 34 characters.

    Raises:
        BadCursor: it is not one; names ``field``. (A cursor that parses and does not hold is a gap.)
    """
    match = _TEXT.fullmatch(text)
    if match is None:
        raise BadCursor(field, "not a cursor of the form epoch.sequence.chain")
    return Cursor(match[1], int(match[2]), match[3])
