"""Lists the approval requests of a caller page by page, and long-polls a single request.

A page has open or closed requests, optionally filtered by kind, minimum risk and task.

A long poll replaces many short ones. It starts after the stream is subscribed, and each event triggers a fresh read. A
reader that disconnects, or that is released when the gateway drains, decides nothing (I6).
"""

from __future__ import annotations

import asyncio
from dataclasses import field
from typing import TYPE_CHECKING, Final, get_args

from passerelle.channels.hub import Start
from passerelle.channels.task_follower import take_step
from passerelle.channels.views import PlainView, TaskView
from passerelle.core.approval.audience import find_withdrawal
from passerelle.core.errors import Forbidden
from passerelle.core.frozen import frozen
from passerelle.core.ids import parse_facade
from passerelle.core.payloads.approval import ClosingState
from passerelle.core.ports.log import StreamKind, StreamRef
from passerelle.permission_bridge.answers.actions import find_record
from passerelle.permission_bridge.approvers import RISKS
from passerelle.runtime.records.task_pages import read_token, write_token

if TYPE_CHECKING:
    from passerelle.channels.hub import Hub
    from passerelle.channels.position import Position
    from passerelle.core.commands import GetAction, ListActions
    from passerelle.core.payloads.approval import ListedState
    from passerelle.core.ports.projections import Projections
    from passerelle.core.principal import Principal
    from passerelle.core.vocabulary import WithdrawalReason
    from passerelle.core.wire.json import JsonObject
    from passerelle.permission_bridge.answers.actions import Actions
    from passerelle.runtime.records.inbox_arrivals import InboxArrivals

_AT_ONCE: Final = 100
_MOST_LOOKED: Final = 1_000
"""Closed requests examined for one page: there may be any number without a match."""
_CLOSED: Final[tuple[ClosingState, ...]] = get_args(ClosingState)
_RESOLVED: Final[tuple[ClosingState, ...]] = (
    "allowed",
    "rejected",
    "answered",
    "answered_by_caller",
)


@frozen
class QuestionPage:
    """Views, newest first, or last closed first. ``token`` leads to the next page; empty at the end."""

    views: list[JsonObject]
    token: str = ""


@frozen
class QuestionLists:
    """Searches the requests of a caller."""

    actions: Actions
    projections: Projections
    arrivals: InboxArrivals

    async def find(self, principal: Principal, query: ListActions) -> QuestionPage:
        """At most ``limit`` matching views, built from the current records: none is in another state than asked for.

        More open requests than fit cost nothing: further ones are read only if some of these are closed by now, or do
        not match. A token contains a time and an id, so changes meanwhile do not shift pages. A page of closed requests
        may be short, and still have a next page.

        Raises:
            Forbidden: the caller is an agent.
            InvalidInput: an invalid page token.
            StoreUnavailable: the list cannot be read.
        """
        require_inbox(principal)
        before = read_token(query.page_token)
        if query.state == "pending":
            await self.arrivals.wait(principal.key)
        found: list[JsonObject] = []
        at_once = _AT_ONCE if query.is_narrow else query.limit
        left = _MOST_LOOKED
        while True:
            rows = await self._list(principal, query.state, at_once + 1, before)
            looked = rows[:at_once]
            ids = [action for action, _ in looked]
            found += [v for v in await self._read(principal, query.state, ids) if _fits(v, query)]
            left -= 0 if query.state == "pending" else len(looked)
            if len(found) >= query.limit:
                page = found[: query.limit]
                last = next(row for row in looked if row[0] == page[-1]["actionId"])
                return QuestionPage(page, _name(last) if last != rows[-1] else "")
            if len(rows) == len(looked):
                return QuestionPage(found)
            if left <= 0:
                return QuestionPage(found, _name(looked[-1]))
            before, at_once = (looked[-1][1], looked[-1][0]), max(at_once, _AT_ONCE)

    async def list_page(self, principal: Principal, query: ListActions) -> JsonObject:
        """A page in wire form; raises as ``find``."""
        page = await self.find(principal, query)
        name = "pending" if query.state == "pending" else "closed"
        return {name: [*page.views], "nextPageToken": page.token}

    async def _list(
        self, principal: Principal, state: ListedState, limit: int, before: tuple[int, str] | None
    ) -> list[tuple[str, int]]:
        if state == "pending":
            return await self.projections.list_inbox(principal.key, limit, before)
        return await self.projections.list_closed(principal.key, _find_states(state), limit, before)

    async def _read(
        self, principal: Principal, state: ListedState, ids: list[str]
    ) -> list[JsonObject]:
        if state == "pending":
            return await self.actions.read_open(principal, ids)
        return await self.actions.read_closed(principal, ids, _find_states(state))

    async def find_withdrawn(
        self, before: Principal, now: Principal
    ) -> list[tuple[str, WithdrawalReason]]:
        """Open requests that the caller could see or answer ``before`` and cannot ``now``, with the reason.

        Newest first.

        Raises:
            StoreUnavailable: the list cannot be read.
        """
        await self.arrivals.wait(before.key)
        rows = await self.projections.list_inbox(before.key)
        records = await self.actions.load_open([action for action, _ in rows])
        return [
            (record.request.action_id, why)
            for record in records
            if (why := find_withdrawal(record, before, now)) is not None
        ]


def require_inbox(principal: Principal) -> None:
    """Raises Forbidden for an agent's credential: it never decides, and polls a single request by its id."""
    if not principal.has_inbox:
        raise Forbidden("a credential of kind agent has no inbox", kind=principal.kind)


def _find_states(state: ListedState) -> tuple[ClosingState, ...]:
    match state:
        case "pending":
            return ()
        case "closed":
            return _CLOSED
        case "resolved":
            return _RESOLVED
        case _:
            return (state,)


def _name(row: tuple[str, int]) -> str:
    action, asked_ms = row
    return write_token((asked_ms, action))


def _fits(view: JsonObject, query: ListActions) -> bool:
    if query.kind is not None and view["kind"] != query.kind:
        return False
    if query.risk is not None and view["risk"] not in RISKS[RISKS.index(query.risk) :]:
        return False
    if query.task is None:
        return True
    parsed = parse_facade(query.task)
    return parsed is not None and view.get("taskId") == parsed[0]


@frozen
class QuestionWaits:
    """Reads a request, now or after its next change."""

    actions: Actions
    hub: Hub
    _leaving: asyncio.Event = field(default_factory=asyncio.Event)

    def drain(self) -> None:
        """Releases all current and future long polls; they return the current state."""
        self._leaving.set()

    async def read(self, principal: Principal, query: GetAction) -> JsonObject:
        """The view of a request; with ``wait_s`` once it differs from ``rev``, or after that time.

        Without ``rev`` the wait starts from the current revision. A closed request is returned at once.

        Raises:
            NotFound: no request of the caller.
            StoreUnavailable: the request cannot be read.
        """
        view = await self.actions.read(principal, query.action_id)
        known = query.rev or view["rev"]
        if query.wait_s == 0 or not _is_unchanged(view, known):
            return view
        record = find_record(await self.actions.load(query.action_id), query.action_id)
        until_s = asyncio.get_running_loop().time() + query.wait_s
        stream = StreamRef(StreamKind.SESSION, record.scope.session_id)
        shown = TaskView(task) if (task := record.scope.task_id) else PlainView()
        async with self.hub.open(stream, shown, Start.LIVE) as position:
            while True:
                view = await self.actions.read(principal, query.action_id)
                if not _is_unchanged(view, known) or not await self._wait(position, until_s):
                    return view

    async def _wait(self, position: Position, until_s: float) -> bool:
        """Waits for an event that may concern the request; returns False when the long poll should end."""
        step = asyncio.create_task(take_step(position), name="question.wait")
        leaving = asyncio.create_task(self._leaving.wait())
        left_s = until_s - asyncio.get_running_loop().time()
        try:
            await asyncio.wait(
                (step, leaving), timeout=max(left_s, 0), return_when=asyncio.FIRST_COMPLETED
            )
            # After a gap the position ends; the state of the request is read from its own record.
            return step.done() and await step is not None
        finally:
            step.cancel()
            leaving.cancel()


def _is_unchanged(view: JsonObject, known: object) -> bool:
    return view["state"] == "pending" and view["rev"] == known
