"""A wish to stop: stored for the task, and for its children where that is wished, before any agent is told (CMD-9)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from passerelle.a2a_mapping.rpc import Method
from passerelle.core import task as tasks
from passerelle.core.batch import DueChange
from passerelle.core.commands import CancelAccepted
from passerelle.core.errors import NotCancelable, NotFound
from passerelle.core.payloads.task import TaskCancelRequested
from passerelle.core.status import ENDED
from passerelle.core.task_commands import RequestCancel
from passerelle.core.task_record import TaskRecord
from passerelle.gateway.control.writes import Terms
from passerelle.gateway.rpc_call import require_operation

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from passerelle.core.commands import CancelTask
    from passerelle.core.decision import Decision
    from passerelle.core.principal import Principal
    from passerelle.gateway.control.contents import Contents
    from passerelle.gateway.control.finishing import Finishing
    from passerelle.gateway.control.ownership import Owned, Ownership
    from passerelle.gateway.control.writes import Writes
    from passerelle.gateway.delegation.dispatch import Dispatch

GRACE_MS: Final = 10_000
_MOST_CHILDREN: Final = 256


@dataclass(frozen=True, slots=True)
class Cancelling:
    """Cancels tasks."""

    writes: Writes
    ownership: Ownership
    contents: Contents
    dispatch: Dispatch
    finishing: Finishing

    async def cancel(self, principal: Principal, command: CancelTask) -> CancelAccepted:
        """Stores the wish, tells the agents, and shows the task as it stands then.

        Raises:
            NotFound: no such task of the caller.
            NotCancelable: it has ended.
        """
        # Over A2A a task is cancelled that callers see; its owner can cancel one before that as well.
        hidden = command.agent is None
        owned = await self.ownership.find(principal, command.task, command.agent, hidden=hidden)
        if owned.record.status in ENDED:
            status = owned.record.status
            raise NotCancelable(f"the task has ended: {status}", status=status)
        wanted = [owned]
        if command.propagation == "subtree":
            wanted += [child async for child in self._list_children(principal, owned)]
        requested = TaskCancelRequested(
            actor=principal.id,
            source="user",
            propagation=command.propagation,
            reason=command.reason,
        )
        await self.stop(principal, wanted, requested)
        now = (await self.writes.load([owned.ref]))[owned.ref]
        record = now.record
        if not isinstance(record, TaskRecord) or not record.shown:
            return CancelAccepted({})
        return CancelAccepted(await self.contents.read_task(record, now.fields) or {})

    async def stop(
        self, principal: Principal, wanted: list[Owned], requested: TaskCancelRequested
    ) -> None:
        """Stores the wish for all of them, and then tells those who work on them."""
        for owned in wanted:
            require_operation(principal, owned.record.kind, Method.CANCEL_TASK)
        told: list[Owned] = []
        for owned in wanted:
            if owned.record.run is None or requested.propagation == "none":
                await self.finishing.stop(owned, requested)
            else:
                await self._wish(owned, requested)
                told.append(owned)
        for owned in told:
            await self.dispatch.cancel(owned.ref.id)

    async def _wish(self, owned: Owned, requested: TaskCancelRequested) -> None:
        def body(decision: Decision) -> Terms:
            now = decision.state(owned.ref)
            if isinstance(now, TaskRecord):
                decision.add(tasks.decide(now, RequestCancel(requested)))
            if not decision.events:
                return Terms()
            at_ms = decision.now_ms + GRACE_MS
            return Terms(due=(DueChange(f"cancel:{owned.ref.id}", at_ms),))

        await self.writes.decide(owned.record.session_id, [owned.ref], body)

    async def _list_children(self, principal: Principal, top: Owned) -> AsyncIterator[Owned]:
        """The open tasks below a task, the nearest first; an edge that leads back is not followed."""
        seen, waiting = {top.ref.id}, [top]
        while waiting and len(seen) <= _MOST_CHILDREN:
            for edge in waiting.pop(0).record.relationships:
                if edge.kind != "child" or edge.status == "removed" or edge.target in seen:
                    continue
                seen.add(edge.target)
                try:
                    child = await self.ownership.find(principal, edge.target, None, hidden=True)
                except NotFound:
                    continue
                waiting.append(child)
                if child.record.status not in ENDED:
                    yield child
