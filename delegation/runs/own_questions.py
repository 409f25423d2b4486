"""Questions that the gateway itself asks before a message is sent to its agent: their readers, and how they end."""

from __future__ import annotations

from typing import TYPE_CHECKING

from passerelle.core.approval.record import ActionRecord
from passerelle.core.errors import StoreUnavailable
from passerelle.core.task import machine as tasks
from passerelle.core.task.status import Status
from passerelle.delegation.runs.draft import find_action
from passerelle.delegation.runs.finish import confirm_cancel
from passerelle.permission_bridge.requests import Asking

if TYPE_CHECKING:
    from passerelle.delegation.runs.active_run import ActiveRun
    from passerelle.delegation.runs.draft import DecisionDraft


def make_asking(draft: DecisionDraft, action_id: str) -> Asking:
    """The readers of a question of this run, and the agent that it is about."""
    record = draft.record
    return Asking(
        action_id=action_id,
        owner=record.owner,
        tenant=record.scope.tenant,
        principal=record.scope.principal,
        peer=draft.context.peer,
        scope=tasks.scope_of(record),
        card_hash=record.run.worker.card_hash if record.run else None,
    )


async def await_closing(active: ActiveRun, action_id: str) -> ActionRecord | None:
    """Waits until the question is closed, and returns it; None where the task has ended, or was cancelled."""
    ref = find_action(action_id)
    while True:
        held = await active.run.writes.load([ref])
        action = held[ref].record
        if active.run.has_ended() or not isinstance(action, ActionRecord):
            return None
        if active.run.record.status is Status.CANCELLING:
            await confirm_cancel(active, "it was cancelled before the agent received it")
            return None
        if not (action.is_open or active.run.is_held()):
            active.run.held |= held
            return action
        try:
            await active.rest(active.timeouts.look_s)
        except StoreUnavailable as error:
            await active.hold(error)
