"""What the devices of a principal say of whoever sits before them: there or away, and looking at what.

It is never a fact and decides nothing. A word of it holds for a minute and goes by itself (PRS-9).
"""

from __future__ import annotations

from passerelle.core.vocabulary import PresenceState
from passerelle.core.wire.record import record


@record
class Presence:
    """The last word of one connection. ``focus`` are the streams that are looked at, by the names of channels."""

    channel_id: str
    device: str
    tab: str | None
    state: PresenceState
    focus: tuple[str, ...] = ()
