"""Checks acknowledgements against the cursors that were sent on the connection (CHN-5)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal, TypeAlias

from passerelle.protocol.cursor import Cursor

AckFault: TypeAlias = Literal["not_subscribed", "ack_epoch", "ack_ahead"]

ACK_FAULTS: Final[Mapping[AckFault, str]] = {
    "not_subscribed": "this connection does not follow the stream",
    "ack_epoch": "the cursor belongs to another epoch of the stream",
    "ack_ahead": "the cursor is beyond what was sent on this connection",
}


def judge_cursor(sent: Mapping[str, Cursor | None], stream: str, cursor: Cursor) -> AckFault | None:
    """Why ``cursor`` cannot be acknowledged, or None; ``sent`` is the last sent cursor per stream."""
    if stream not in sent:
        return "not_subscribed"
    last = sent[stream]
    if last is None or cursor.epoch != last.epoch:
        return "ack_epoch"
    if cursor.sequence > last.sequence:
        return "ack_ahead"
    if cursor.sequence == last.sequence and cursor.chain != last.chain:
        return "ack_ahead"
    return None


def choose_later(held: Cursor | None, cursor: Cursor) -> Cursor:
    """The cursor to keep: an acknowledgement never moves back inside one epoch."""
    if held is None or held.epoch != cursor.epoch or cursor.sequence > held.sequence:
        return cursor
    return held
