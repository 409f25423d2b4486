"""The messages of a thread: what was said to agents, what these answered or asked, and what the gateway says (MK-33).

A message is read off a stored event; nothing is stored for it. Its ``id`` says what it is about: two with one id are
the same message, met twice. Who writes them down in a file of lines leaves out what it has.
"""

from __future__ import annotations

from typing import Final, Literal, TypeAlias

from passerelle.core.read_models.packets import ResultUsage
from passerelle.core.wire.record import record

MESSAGE: Final = "packet.message"
"""What an event of a stream of messages is."""

Speaker: TypeAlias = Literal["user", "assistant", "system"]
"""Of A2A's roles ``user`` is the first, ``agent`` the second; notices of the gateway are of the third."""


@record
class HistoryMessage:
    """One message. ``quote`` are the tasks that it refers to; ``elapsed_ms`` goes from the first run of its task on."""

    id: str
    role: Speaker
    text: str
    created_at: str
    thread_id: str
    cursor: str
    task_id: str | None = None
    agent: str | None = None
    usage: ResultUsage | None = None
    elapsed_ms: int | None = None
    quote: tuple[str, ...] | None = None
    cut: Literal[True] | None = None
    """Whether there is more text than stands here."""
