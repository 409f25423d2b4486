"""The presence of a principal's devices: active, idle or away, and the streams in focus.

Presence is never a fact and decides nothing. An entry expires after a minute (PRS-9).
"""

from __future__ import annotations

from passerelle.core.vocabulary import PresenceState
from passerelle.core.wire.record import record


@record
class Presence:
    """The last presence of one connection. ``focus`` are the viewed streams, by channel name."""

    channel_id: str
    device: str
    tab: str | None
    state: PresenceState
    focus: tuple[str, ...] = ()
