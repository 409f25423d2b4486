"""A task that waits and does not say for what: some agents show a question once, and afterwards only that they wait.

Such a sight is no new question. It stands for those that were seen before, unless the agent has begun to wait since.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from passerelle.a2a_mapping.dialects import langgraph
from passerelle.a2a_mapping.dialects.pause import read_pause
from passerelle.core.json import JsonObject
from passerelle.core.payloads.approval import RemotePause
from passerelle.core.times import parse_ms

_SHOW_ONCE: Final = frozenset({langgraph.NAME})


def recall(task: JsonObject, asked: Iterable[RemotePause]) -> frozenset[str]:
    """Occurrences of the questions, of those that were asked, in whose pause a task of the peer still is.

    None where the task waits with words or artifacts: then they say what it asks.
    """
    pause = read_pause("", task)
    if pause is None or pause.message or pause.artifacts:
        return frozenset()
    return frozenset(
        one.occurrence
        for one in asked
        if one.dialect in _SHOW_ONCE
        and one.native_status == pause.native_status
        and not _is_later(pause.at, one.said_at)
    )


def _is_later(at: str, known: str | None) -> bool:
    """Whether the peer says that it began to wait after ``known``; one that says no time has said nothing new."""
    try:
        return known is not None and parse_ms(at) > parse_ms(known)
    except ValueError:
        return False
