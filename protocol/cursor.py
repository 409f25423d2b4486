"""Cursors that are verified, not only compared: no gap is silent (I8).

A cursor reads ``<epoch>.<sequence>.<chain>`` and names a position in one history. The chain is a running hash over
event ids (``core.event_chain``). Event ``n`` is stored with ``chain(n-1)``, the head with the chain of the last event,
so a position is verified by its successor, or by the head if it has none. After a lost tail the epoch is the same and
sequences are reused: only the chain distinguishes the two histories.

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
    """The stream was recreated."""
    AHEAD = "ahead"
    """Beyond the end: acknowledged writes were lost."""
    FORKED = "forked"
    """The sequence exists in another history."""
    LOST = "lost"
    """Head or entries are missing, without a trim."""
    LIMIT = "limit"
    """More missed events than the replay limit."""
    SLOW = "slow"
    """Fell behind the ring buffer and beyond the replay limit while connected."""


def parse_cursor(text: str, field: str = "cursor") -> Cursor:
    """Reads a cursor text of at most 34 characters.

    Raises:
        BadCursor: it does not parse; names ``field``. (A cursor that parses but does not verify is a gap.)
    """
    match = _TEXT.fullmatch(text)
    if match is None:
        raise BadCursor(field, "not a cursor of the form epoch.sequence.chain")
    return Cursor(match[1], int(match[2]), match[3])
