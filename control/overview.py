"""The workload of a gateway in a few numbers: a bounded read of all owners' lists, at most once a second.

Nothing is counted while tasks run. One exchange with each primary reads the lengths and the oldest rows of the lists,
and the records of the oldest rows give their states. So an overview costs the same for ten tasks and for ten thousand,
and marks counts that are incomplete.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass, field
from operator import itemgetter
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias

from passerelle.control.question_oversight import keep_seen
from passerelle.core.approval.record import ActionRecord
from passerelle.core.frozen import frozen
from passerelle.core.index_changes import UNSEEN
from passerelle.core.principal import OWNER, AccessScope
from passerelle.core.read_models.overview import (
    ApprovalOverview,
    DeliveryOverview,
    Overview,
    count_tasks,
)
from passerelle.core.task.record import TaskRecord
from passerelle.core.task.status import ENDED, LISTED
from passerelle.core.wire.codec import to_wire
from passerelle.core.wire.record import change
from passerelle.core.wire.times import format_ms

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from passerelle.control.oversight import Oversight
    from passerelle.core.oversight_requests import GetOverview
    from passerelle.core.ports.projections import ListedTasks, ListSurvey, ListSurveys
    from passerelle.core.principal import Principal
    from passerelle.core.read_models.overview import RuntimeOverview, TaskOverview
    from passerelle.core.wire.json import JsonObject
    from passerelle.runtime.records.task_lists import TaskLists

MOST_LISTS: Final = 2_000
"""Lists that are read, those with the newest rows first."""
MOST_TASKS: Final = 500
"""Records that are read, those of the oldest rows."""
_OLDEST: Final = 100
"""Oldest rows read per list."""
_MOST_QUESTIONS: Final = 200
"""Requests read per owner."""
_MOST_READ: Final = 500
"""Requests whose records are read, oldest first, if the reader does not see all agents."""
_MOST_FAILING: Final = 1_000
_Scope: TypeAlias = tuple[str | None, frozenset[str] | None]
"""A tenant and its visible agents; None: all."""
_Kept: TypeAlias = "tuple[int, TaskOverview, ApprovalOverview]"
"""The time of a survey, and its result."""
_KEPT_MS: Final = 1_000
_MOST_KEPT: Final = 64


class FailingTargets(Protocol):
    """Webhooks that fail; ``RedisTargets`` is one."""

    async def list_stuck(self, limit: int) -> Sequence[FailingTarget]:
        """At most ``limit`` of them, the longest failing ones first."""
        ...


class FailingTarget(Protocol):
    """A failing webhook."""

    @property
    def since_ms(self) -> int:
        """The time of the first failure."""
        ...


@frozen
class _View:
    """The scope of a survey: a tenant, None for all, and its visible agents."""

    tenant: str | None
    agents: frozenset[str] | None
    sees: Callable[[str], bool]

    def has(self, tenant: str | None) -> bool:
        """Whether a tenant is in scope."""
        return tenant is not None and self.tenant in {None, tenant}

    def may_have(self, tenant: str | None) -> bool:
        """The same for an owner whose tenant may not be known yet."""
        return tenant is None or self.has(tenant)


@dataclass(slots=True)
class Overviews:
    """Answers queries about the workload of a gateway.

    ``tasks:oversee`` shows the open work of the reader's tenant, for its agents; ``runtime:operate`` the rest.
    """

    records: TaskLists
    surveys: ListSurveys
    targets: FailingTargets
    oversight: Oversight
    list_callers: Callable[[], tuple[Principal, ...]]
    describe_runtime: Callable[[], RuntimeOverview]
    _kept: dict[_Scope, _Kept] = field(default_factory=dict["_Scope", "_Kept"])
    _turn: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def read(self, principal: Principal, _query: GetOverview) -> JsonObject:
        """The parts that the reader has a right to.

        Raises:
            StoreUnavailable: a primary does not answer.
        """
        now_ms = self.records.writes.clock.now_ms()
        found = Overview(format_ms(now_ms))
        if AccessScope.OVERSEE_TASKS in principal.scopes:
            await self.oversight.record_tenant_read(principal)
            tasks, approvals = await self.look(principal)
            found = change(found, tasks=tasks, approvals=approvals)
        if AccessScope.OPERATE in principal.scopes:
            behind_ms = await self.records.lag.measure()
            runtime = change(self.describe_runtime(), relay_behind_ms=behind_ms)
            found = change(found, deliveries=await self._look_at_targets(), runtime=runtime)
        return to_wire(found)

    async def list_owners(self, principal: Principal) -> list[str]:
        """Keys of owners who may be of the principal's tenant: owners of a list, and configured ones."""
        view = _View(principal.tenant, principal.agents, principal.sees)
        every = await self.records.projections.list_lists()
        named = [one.key for one in self.list_callers() if view.has(one.tenant)]
        met = [one.owner for one in every if view.may_have(self.records.tenants.get(one.owner))]
        return [*dict.fromkeys((*named, *met))][:MOST_LISTS]

    async def look(self, principal: Principal) -> tuple[TaskOverview, ApprovalOverview]:
        """The open work of the principal's tenant, for the agents it sees; cached for a second."""
        return await self._look_in_turn(_View(principal.tenant, principal.agents, principal.sees))

    async def look_everywhere(
        self, kept_ms: int
    ) -> tuple[TaskOverview, ApprovalOverview, DeliveryOverview]:
        """The open work of all tenants, for metrics only; cached for ``kept_ms``."""
        tasks, approvals = await self._look_in_turn(_View(None, None, OWNER.sees), kept_ms)
        return tasks, approvals, await self._look_at_targets()

    async def _look_in_turn(
        self, view: _View, kept_ms: int = _KEPT_MS
    ) -> tuple[TaskOverview, ApprovalOverview]:
        wanted = (view.tenant, view.agents)
        async with self._turn:
            now_ms = self.records.writes.clock.now_ms()
            kept = self._kept.get(wanted)
            if kept is None or not 0 <= now_ms - kept[0] < kept_ms:
                while len(self._kept) >= _MOST_KEPT:
                    del self._kept[next(iter(self._kept))]
                kept = self._kept[wanted] = (now_ms, *await self._look(view))
        return kept[1:]

    async def _look(self, view: _View) -> tuple[TaskOverview, ApprovalOverview]:
        every = await self.records.projections.list_lists()
        tenants = self.records.tenants
        mine = [one for one in every if view.may_have(tenants.get(one.owner))]
        seen = [one for one in mine if one.agent == UNSEEN or view.sees(one.agent)]
        listed = sorted(seen, key=lambda one: -one.at_ms)[:MOST_LISTS]
        found = await self.surveys.survey_open(listed, _OLDEST)
        tasks = await self._count(view, listed, found, is_cut=len(listed) < len(seen))
        owners = [one.key for one in self.list_callers() if view.has(one.tenant)]
        owners += [one.owner for one in mine if view.has(tenants.get(one.owner))]
        return tasks, await self._count_questions(view, [*dict.fromkeys(owners)])

    async def _count(
        self,
        view: _View,
        listed: Sequence[ListedTasks],
        found: Sequence[ListSurvey],
        *,
        is_cut: bool,
    ) -> TaskOverview:
        # A task that was created before it was sent stays in the list without an agent: those rows come last.
        rows = sorted(
            ((at_ms, name, place) for place, one in enumerate(found) for name, at_ms in one.oldest),
            key=lambda row: (listed[row[2]].agent == UNSEEN, row),
        )
        read = await self.records.load([(at_ms, name) for at_ms, name, _ in rows[:MOST_TASKS]])
        named: dict[str, tuple[str, TaskRecord]] = {}
        for (_, name), held in read:
            record = held.record
            if isinstance(record, TaskRecord):
                self.records.tenants[record.owner] = record.scope.tenant
                if _is_shown(view, record):
                    named[record.task_id] = (name, record)
        looked = Counter(place for _, _, place in rows[:MOST_TASKS])
        more: dict[str, int] = {"": 0} if is_cut else {}
        for place, (one, survey) in enumerate(zip(listed, found, strict=True)):
            left = survey.count - looked[place]
            if left > 0 and view.may_have(self.records.tenants.get(one.owner)):
                # Rows without an agent, or of an owner whose tenant is unknown, are counted only if they are read.
                known = one.agent != UNSEEN and one.owner in self.records.tenants
                more[one.agent] = more.get(one.agent, 0) + (left if known else 0)
        records = [record for _, record in named.values()]
        return count_tasks(records, {one: name for one, (name, _) in named.items()}, more)

    async def _count_questions(self, view: _View, owners: Sequence[str]) -> ApprovalOverview:
        """A request with several approvers counts once, and one about an agent that is not visible does not."""
        found = await self.surveys.survey_pending(owners[:MOST_LISTS], _MOST_QUESTIONS)
        asked = dict(sorted((row for one in found for row in one.oldest), key=itemgetter(1)))
        is_cut = len(owners) > MOST_LISTS or any(one.count > len(one.oldest) for one in found)
        if view.agents is not None:
            is_cut = is_cut or len(asked) > _MOST_READ
            asking = await self.records.writes.read_all(ActionRecord, [*asked][:_MOST_READ])
            seen = await keep_seen(self.records.writes, [*asking.values()], view.sees)
            asked = {one.request.action_id: asked[one.request.action_id] for one in seen}
        oldest_ms = min(asked.values(), default=None)
        return ApprovalOverview(
            len(asked), not is_cut, None if oldest_ms is None else format_ms(oldest_ms)
        )

    async def _look_at_targets(self) -> DeliveryOverview:
        found = await self.targets.list_stuck(_MOST_FAILING + 1)
        return DeliveryOverview(
            min(len(found), _MOST_FAILING),
            len(found) <= _MOST_FAILING,
            format_ms(found[0].since_ms) if found else None,
        )


def _is_shown(view: _View, record: TaskRecord) -> bool:
    return (
        view.has(record.scope.tenant)
        and view.sees(record.agent)
        and record.visibility in LISTED
        and record.status not in ENDED
    )
