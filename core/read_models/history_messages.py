"""The messages of a thread: to agents, from agents, and notices of the gateway (MK-33).

A message is derived from a stored event; nothing is stored for it. Its ``id`` is derived from its subject: two with one
id are the same message, so a reader that writes them to a file can skip repeats.
"""

from __future__ import annotations

from typing import Final, Literal, TypeAlias

from passerelle.core.read_models.packets import ResultUsage
from passerelle.core.wire.record import record

MESSAGE: Final = "packet.message"
"""The event type in a stream of messages."""

Speaker: TypeAlias = Literal["user", "assistant", "system"]
"""A2A's roles ``user`` and ``agent`` are the first two; notices of the gateway are ``system``."""


@record
class HistoryMessage:
    """One message. ``quote`` are the tasks that it refers to; ``elapsed_ms`` counts from the first run of its task."""

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
    """Whether the text was cut."""
