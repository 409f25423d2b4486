"""The message with which a run begins, from what its task was told. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from passerelle.a2a_mapping.dialects.presentation import read_decision
from passerelle.a2a_mapping.members import as_list, objects_at, text_at
from passerelle.runtime.records.withholding import is_withheld

if TYPE_CHECKING:
    from collections.abc import Sequence

    from passerelle.core.json import JsonObject
    from passerelle.core.task_record import Attempt


def find_first(accepted: Sequence[JsonObject], run: Attempt) -> JsonObject | None:
    """The message that a run was made for: the one that was accepted, or for a further attempt all until then."""
    if run.ordinal > 1:
        told = accepted[: len(run.input_refs)]
        return {**compose_input(told), "messageId": run.message_id} if told else None
    return next(
        (one for one in reversed(accepted) if text_at(one, "messageId") == run.message_id), None
    )


def compose_input(accepted: Sequence[JsonObject]) -> JsonObject:
    """All that a task was told, as one message: the first one, with the parts of those that came later.

    Decisions are left out: they answered questions of a run that is over. So is what was withheld: it is not here.
    """
    first, *later = accepted
    further = [one for one in later if read_decision(one) is None and not is_withheld(one)]
    parts = [part for one in (first, *further) for part in objects_at(one, "parts")]
    return {**first, "parts": as_list(parts)}
