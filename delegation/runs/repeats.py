"""Statuses that repeat the last one: only a sign of life. Pure.

One of them is stored from time to time, since the idle limit of a run restarts with each update of its agent. The
others are dropped: an agent that sends ticks would fill the history.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from passerelle.a2a_mapping.difference import without_time
from passerelle.a2a_mapping.members import object_at, text_at
from passerelle.a2a_mapping.states import INTERRUPTED_STATES
from passerelle.core.task.status import WORKING
from passerelle.core.wire.times import parse_ms

if TYPE_CHECKING:
    from passerelle.core.wire.json import JsonObject
    from passerelle.delegation.runs.draft import DecisionDraft

LONGEST_MS: Final = 10_000
"""One status is stored per this time; more often if the idle limit of the run is short."""
_OF_LIMIT: Final = 4
"""How often within an idle limit."""


def is_dropped(
    draft: DecisionDraft, before: JsonObject | None, folded: JsonObject, state: str
) -> bool:
    """Whether a status is not stored: it changes ``before`` to ``folded``, and the peer reported ``state``."""
    if before is None or without_time(folded) != without_time(before):
        return False
    run, shown = draft.record.run, text_at(object_at(folded, "status"), "state")
    # A repeated question needs an answer, and any update ends what a broken stream has left open.
    if (
        run is None
        or draft.record.status not in WORKING
        or shown in INTERRUPTED_STATES
        or (state or shown) != run.native_status
        or run.broken_at is not None
    ):
        return folded == before
    limit_ms = run.retry_policy.idle_timeout_ms
    kept_ms = LONGEST_MS if limit_ms is None else min(LONGEST_MS, limit_ms // _OF_LIMIT)
    return draft.decision.now_ms - parse_ms(run.news_at) < kept_ms
