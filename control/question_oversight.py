"""Oversight of pending approval requests in a tenant: for whom, at which risk, since when; never the content.

An overseer keeps a tenant's requests answered without being one of their approvers. So the view has no text of the
agent, no subject and no options, and cannot be answered. Each read is recorded as a fact in the reader's home session
before anything is returned.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, TypeAlias

from passerelle.core.approval.record import ActionRecord
from passerelle.core.errors import InvalidInput, NotFound
from passerelle.core.frozen import frozen
from passerelle.core.ids import parse_facade
from passerelle.core.principal import AccessScope, Principal
from passerelle.core.task.record import TaskRecord
from passerelle.core.wire.times import format_ms
from passerelle.permission_bridge.answers.question_lists import require_inbox
from passerelle.permission_bridge.approvers import RISKS
from passerelle.runtime.common.calls import require_scope
from passerelle.runtime.records.task_pages import read_token, write_token

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from passerelle.control.oversight import Oversight
    from passerelle.core.commands import GetAction, ListActions
    from passerelle.core.ports.projections import Projections
    from passerelle.core.wire.json import Json, JsonObject
    from passerelle.runtime.records.writes import Writes

    _Page: TypeAlias = list[tuple[str, int]]
    """Requests of one owner with their times, newest first."""

_SCOPES: Final = (AccessScope.OVERSEE_APPROVALS,)


@frozen
class QuestionOversight:
    """Shows pending requests to overseers of a tenant's approvals."""

    writes: Writes
    projections: Projections
    oversight: Oversight
    list_owners: Callable[[Principal], Awaitable[Sequence[str]]]
    """Keys of owners who may be of the principal's tenant."""

    def over_one(
        self, read: Callable[[Principal, GetAction], Awaitable[JsonObject]]
    ) -> Callable[[Principal, GetAction], Awaitable[JsonObject]]:
        """A handler that answers those who may read a request, and with a reduced view overseers of approvals."""

        async def overseen(principal: Principal, query: GetAction) -> JsonObject:
            try:
                return await read(principal, query)
            except NotFound:
                found = await self._find(principal, [query.action_id])
                if not found:
                    raise
            [record] = found
            await self.oversight.record_request_read(
                principal, query.action_id, record.request.owner, record.first_seq, record.last_seq
            )
            return show_waiting(record)

        return overseen

    def over_list(
        self, read: Callable[[Principal, ListActions], Awaitable[JsonObject]]
    ) -> Callable[[Principal, ListActions], Awaitable[JsonObject]]:
        """A handler of lists: the caller's own, or with ``owners`` ``all`` the open ones of the whole tenant."""

        async def overseen(principal: Principal, query: ListActions) -> JsonObject:
            if query.owners == "mine":
                return await read(principal, query)
            require_scope(principal, _SCOPES)
            require_inbox(principal)
            if query.state != "pending":
                raise InvalidInput("state", "only pending requests of other owners can be listed")
            await self.oversight.record_requests_read(principal)
            return await self._list(principal, query)

        return overseen

    async def _list(self, principal: Principal, query: ListActions) -> JsonObject:
        """A page may have fewer than ``limit`` entries, and still a next page."""
        before, owners = read_token(query.page_token), await self.list_owners(principal)
        pages = await asyncio.gather(
            *(self.projections.list_inbox(owner, query.limit + 1, before) for owner in owners)
        )
        near = await self._drop_other_tenants(principal, [page for page in pages if page])
        rows = sorted(
            {(asked_ms, action) for page in near for action, asked_ms in page}, reverse=True
        )
        looked = rows[: query.limit]
        found = await self._find(principal, [action for _, action in looked])
        views: list[Json] = [
            show_waiting(record) for record in found if record.is_open and _fits(record, query)
        ]
        token = write_token(looked[-1]) if len(looked) < len(rows) else ""
        return {"pending": views, "nextPageToken": token}

    async def _drop_other_tenants(
        self, principal: Principal, pages: Sequence[_Page]
    ) -> Sequence[_Page]:
        """Drops pages of owners in other tenants, whose tenant was not known before: a token names a row.

        An owner is in one tenant, so one request tells it for all.
        """
        firsts = [page[0][0] for page in pages]
        found = await self.writes.read_all(ActionRecord, firsts)
        far = {name for name, one in found.items() if one.request.tenant != principal.tenant}
        return [page for first, page in zip(firsts, pages, strict=True) if first not in far]

    async def _find(self, principal: Principal, actions: Sequence[str]) -> list[ActionRecord]:
        """The requests of the tenant about agents that the reader sees."""
        if AccessScope.OVERSEE_APPROVALS not in principal.scopes or not principal.has_inbox:
            return []
        found = await self.writes.read_all(ActionRecord, actions)
        records = [one for one in found.values() if one.request.tenant == principal.tenant]
        return (
            records
            if principal.agents is None
            else await keep_seen(self.writes, records, principal.sees)
        )


async def keep_seen(
    writes: Writes, questions: Sequence[ActionRecord], sees: Callable[[str], bool]
) -> list[ActionRecord]:
    """The requests of tasks whose agent is visible.

    Raises:
        StoreUnavailable: a primary does not answer.
    """
    names = sorted(one.scope.task_id for one in questions if one.scope.task_id)
    tasks = await writes.read_all(TaskRecord, names)
    return [
        one
        for one in questions
        if (task := tasks.get(one.scope.task_id or "")) is not None and sees(task.agent)
    ]


def _fits(record: ActionRecord, query: ListActions) -> bool:
    request = record.request
    return (
        query.kind in {None, request.kind}
        and (query.risk is None or request.risk in RISKS[RISKS.index(query.risk) :])
        and (query.task is None or (parse_facade(query.task) or [""])[0] == record.scope.task_id)
    )


def show_waiting(record: ActionRecord) -> JsonObject:
    """The reduced view: pending or how it ended, without texts of the agent or of the approver."""
    request, decision = record.request, record.decision
    asked = [name for step in request.audience[: record.step + 1] for name in step.principals]
    view: dict[str, Json] = {
        "actionId": request.action_id,
        "rev": record.rev,
        "state": record.state,
        "kind": request.kind,
        "actionType": request.action_type,
        "risk": request.risk,
        "destructive": request.destructive,
        "owner": request.principal,
        "audience": [*dict.fromkeys(asked or [request.principal])],
        "need": request.quorum.need,
        "votes": len(record.votes),
        "peer": request.origin.peer,
        "taskId": record.scope.task_id,
        "sessionId": record.scope.session_id,
        "createdAt": format_ms(request.created_ms),
        "expiresAt": format_ms(request.expires_ms),
        "returnState": record.return_state,
    }
    if decision is not None:
        view["decidedBy"], view["decidedAt"] = decision.decided_by, decision.decided_at
    return view
