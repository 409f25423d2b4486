"""What people do about a question beside answering it. Nothing here decides, and nothing opens or closes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, assert_never

from passerelle.core.approval_audience import may_read
from passerelle.core.approval_commands import RetryReturn, SeeAction
from passerelle.core.attention_requests import NoteSeen, ReturnAgain, ReturnOwed, SeenNoted
from passerelle.core.errors import Forbidden, NotFound, UnsupportedOperation
from passerelle.gateway.control.actions import find_record
from passerelle.gateway.control.writes import Written

if TYPE_CHECKING:
    from passerelle.core.approval_commands import ActionCommand
    from passerelle.core.approval_record import ActionRecord
    from passerelle.core.attention_requests import AttentionAnswer, AttentionRequest
    from passerelle.core.principal import Principal
    from passerelle.gateway.control.actions import Actions
    from passerelle.gateway.delegation.dispatch import Dispatch


@dataclass(frozen=True, slots=True)
class Attending:
    """Notes who has seen what, and pushes answers that did not arrive."""

    actions: Actions
    dispatch: Dispatch

    async def execute(self, principal: Principal, command: AttentionRequest) -> AttentionAnswer:
        """Carries out one command; each is the same when it comes twice.

        Raises:
            NotFound: no question of the caller.
            Forbidden: an agent says that it has seen something.
            StaleAnswer, ActionClosed, UnsupportedOperation: the question does not stand like that.
        """
        if principal.kind == "agent":
            raise Forbidden("a credential of kind agent attends to nothing", kind=principal.kind)
        match command:
            case NoteSeen(action_id=action, rev=rev):
                record = await self._tell(principal, action, SeeAction(principal, rev))
                return SeenNoted(action, record.seen)
            case ReturnAgain(action_id=action):
                record = await self._tell(principal, action, RetryReturn())
                self.dispatch.wake(record.scope.task_id or "", action)
                return ReturnOwed(action, record.return_state)
            case _:
                assert_never(command)

    async def _tell(
        self, principal: Principal, action_id: str, command: ActionCommand
    ) -> ActionRecord:
        held = await self.actions.load(action_id)
        if not may_read(find_record(held, action_id), principal):
            raise NotFound("action", action_id)
        outcome = await self.actions.close(action_id, command, held=held)
        if not isinstance(outcome, Written):
            raise UnsupportedOperation("the question is changing; look again")
        return find_record(outcome.held, action_id)
