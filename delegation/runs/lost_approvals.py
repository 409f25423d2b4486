"""A peer that completes although nobody has let it: an approval that it lost, and that nobody can give any more.

Pure. Some frameworks drop what a tool waits for on its way out: the task is completed, the tool never ran, no word of
that is said. Nothing can be answered there, so all that can be done is not to let it pass in silence.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from passerelle.a2a_mapping.frames import ROLE_AGENT
from passerelle.a2a_mapping.members import object_at, objects_at, text_at
from passerelle.core.approval_record import ActionRecord

if TYPE_CHECKING:
    from passerelle.core.json import JsonObject
    from passerelle.delegation.runs.step import Step

CODE: Final = "peer_lost_approval"
_GATED: Final = frozenset({"permission", "confirmation"})


def find_lost(step: Step) -> str | None:
    """Why a completed task of a peer may lack something that wanted approval; None where nothing says so.

    To be asked before the questions of the task are closed.
    """
    actions = [state for state in step.decision.states.values() if isinstance(state, ActionRecord)]
    if any(_is_unanswered(action) for action in actions if action.request.kind in _GATED):
        return "the agent completed without the answer to what it had asked leave for"
    if is_silent(step.sight.content or {}):
        return "the agent completed without a word and without output: what wanted approval did not run"
    return None


def is_silent(task: JsonObject) -> bool:
    """Whether a Task has no artifact and no message of its agent."""
    if objects_at(task, "artifacts"):
        return False
    said = [*objects_at(task, "history"), object_at(object_at(task, "status"), "message")]
    return all(text_at(message, "role") != ROLE_AGENT for message in said)


def _is_unanswered(action: ActionRecord) -> bool:
    """Whether the peer was never sent the answer, and asked nothing else in its place."""
    if action.is_open:
        return True
    by_itself = action.decision is not None and action.decision.cause == "peer_moved_on"
    return by_itself or (action.return_state == "owed" and action.return_attempts == 0)
