"""Chooses the agent of a task that was created for the router: its profile is read when it starts (TR-12).

The profile is that of the task, or else that of its message, as for any message. The task's constraints exclude further
agents. A task that no agent fits stays as it is, and may be started again: the refusal is recorded on it, with the
reason for each agent.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from passerelle.control.router import read_wanted
from passerelle.control.task_changes import read_task
from passerelle.core.agent_name import ROUTER
from passerelle.core.batch import IdempotencyRow
from passerelle.core.errors import UnsupportedOperation
from passerelle.core.events import Fact
from passerelle.core.facts import Scope
from passerelle.core.frozen import frozen
from passerelle.core.payloads.task import TaskProgress
from passerelle.core.routing.profile import read_profile
from passerelle.core.routing.words import describe_routing
from passerelle.core.session.thread import ThreadRecord, find_holder
from passerelle.core.task import machine as tasks
from passerelle.core.task.commands import AcceptTask, ReportProgress
from passerelle.core.task.status import Status
from passerelle.core.wire.canonical import digest
from passerelle.delegation.runs.limits import find_obstacle
from passerelle.runtime.records.writes import AppendOptions

if TYPE_CHECKING:
    from collections.abc import Collection

    from passerelle.control.router import Router
    from passerelle.core.decision import Decision
    from passerelle.core.payloads.routing import TaskProfileResolved
    from passerelle.core.principal import Principal
    from passerelle.core.routing.table import Route
    from passerelle.core.task.record import TaskRecord
    from passerelle.core.wire.json import JsonObject
    from passerelle.runtime.records.ownership import Owned
    from passerelle.runtime.records.writes import Writes

_NOTED_MS: Final = 600_000
"""Period in which the same refusal is recorded once."""


def is_routed(record: TaskRecord, agent: str) -> bool:
    """Whether the gateway chooses the agent of a task that starts at ``agent``."""
    return agent == ROUTER and record.kind == ROUTER


def check_profile(agent: str, profile: JsonObject | None) -> None:
    """Raises InvalidInput if a routed task has an invalid profile; the profile of other tasks is only stored."""
    if agent == ROUTER and profile:
        read_profile(profile, "profile")


@frozen
class StartRouting:
    """Chooses agents for tasks that start."""

    router: Router
    writes: Writes

    async def choose(
        self,
        principal: Principal,
        record: TaskRecord,
        message: JsonObject,
        unpaid: Collection[str] = (),
    ) -> Route:
        """The route; ``unpaid`` are agents that the caller's budget does not cover.

        Raises:
            InvalidInput: the profile of the task, or of its message, is invalid.
        """
        profile = _read(record, message)
        held = await self._find_holder(record) if profile.continuity else None

        def bar(agent: str, endpoint: str | None, price: int) -> str | None:
            return find_obstacle(record, agent, endpoint, price)

        return await self.router.route(
            principal, profile, held, unpaid, bar if record.constraints else None
        )

    async def _find_holder(self, record: TaskRecord) -> str | None:
        thread = await self.writes.read(ThreadRecord, record.thread_id or "")
        return find_holder(thread) if thread is not None else None

    async def refuse(self, owned: Owned, route: Route) -> UnsupportedOperation:
        """Records on the task that no agent fits, and returns the error for the caller.

        The facts have the id of the turn that would have started. The turn is not opened: no agent got its message,
        which is not part of the task's content.
        """
        known, said = owned.record, route.list_facts()
        reason = describe_routing(said[-1])
        key = f"unrouted:{owned.ref.id}:{digest(reason)}"
        turn_id = self.writes.ids.mint("turn", owned.ref.shard)
        scope = Scope(known.session_id, known.thread_id, turn_id, known.task_id)

        def body(decision: Decision) -> AppendOptions:
            record = read_task(decision, owned.ref, None)
            if record.status is Status.DRAFT:
                decision.add(tasks.decide(record, AcceptTask()))
                record = read_task(decision, owned.ref, None)
            decision.add(Fact(scope, one) for one in said)
            decision.add(tasks.decide(record, ReportProgress(TaskProgress(summary=reason))))
            return AppendOptions(idem=IdempotencyRow(key, key, b"", _NOTED_MS))

        await self.writes.decide(known.session_id, [owned.ref], body)
        return UnsupportedOperation(reason, status=known.status)


def _read(record: TaskRecord, message: JsonObject) -> TaskProfileResolved:
    if record.profile:
        return read_profile(record.profile, "profile")
    return read_wanted(message, None)
