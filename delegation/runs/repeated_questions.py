"""Questions that an agent asks again: it did nothing with the answer that it was sent, and waits as before."""

from __future__ import annotations

from typing import TYPE_CHECKING

from passerelle.a2a_mapping.dialects.recall import recall, restate
from passerelle.a2a_mapping.identity import make_relabel
from passerelle.a2a_mapping.members import object_at, text_at
from passerelle.a2a_mapping.states import INTERRUPTED_STATES
from passerelle.core.approval.record import ActionRecord
from passerelle.core.peer import Answered
from passerelle.core.task.status import Status
from passerelle.delegation.runs.draft import find_action
from passerelle.delegation.runs.failure import list_ids
from passerelle.delegation.runs.results import apply_results

if TYPE_CHECKING:
    from collections.abc import Sequence

    from passerelle.core.payloads.approval import RemotePause
    from passerelle.core.wire.json import JsonObject
    from passerelle.delegation.runs.active_run import ActiveRun
    from passerelle.delegation.runs.draft import DecisionDraft


async def ask_again(active: ActiveRun, action_ids: Sequence[str], remote: str) -> None:
    """Reads the agent's task ``remote`` after the agent is done with an answer, and asks again if it waits as before.

    The agent has had the answer, so the task is no earlier state of it: the agent has ended its turn with a bare
    Message, with the same words, or with nothing.
    """
    record = active.run.record
    if record.status is not Status.RUNNING or record.open_actions:
        return
    seen = await active.peer.get(remote)
    task = seen.result if isinstance(seen, Answered) else {}
    if read_state(task) not in INTERRUPTED_STATES:
        return

    def note(draft: DecisionDraft) -> None:
        draft.is_done_with_answer = draft.record.status is Status.RUNNING

    task = restate_moved(active, action_ids, task)
    await apply_results(active, [{"task": task}], note)


def restate_moved(active: ActiveRun, action_ids: Sequence[str], task: JsonObject) -> JsonObject:
    """The agent's ``task`` with its question in the status, if the agent still waits for it but has moved it away."""
    asked = _find_pause(active, action_ids)
    if asked is None or not recall(task, [asked]):
        return task
    return restate_task(active, action_ids, task) or task


def restate_task(
    active: ActiveRun, action_ids: Sequence[str], task: JsonObject
) -> JsonObject | None:
    """The agent's ``task`` as it stood when it asked the questions; None where its words are not known any more."""
    run, asked = active.run, _find_pause(active, action_ids)
    if asked is None:
        return None
    ids = make_relabel(
        run.record.task_id, run.context.context_id, list_ids(run.context, run.record)
    )
    return restate(task, asked, run.context.content or {}, ids.scrub(asked.message_id or ""))


def _find_pause(active: ActiveRun, action_ids: Sequence[str]) -> RemotePause | None:
    """What the questions say of the agent's pause; one pause is the same for all of them."""
    held = active.run.held
    found = [held[ref].record for ref in map(find_action, action_ids) if ref in held]
    return next((one.request.remote for one in found if isinstance(one, ActionRecord)), None)


def read_state(task: JsonObject) -> str:
    """The state of a task of the agent; empty where it has none."""
    return text_at(object_at(task, "status"), "state")
