"""Questions of a caller, page by page, and the wait of a reader for what becomes of one.

A page has open or ended ones; all, or those of one kind, from one risk on, of one task.

A wait is one long poll in place of many short ones. It is no truth of its own: it begins after the stream is listened
to, and every wake leads to a fresh read. A reader who leaves, or whom the gateway sends away because it stops, has
decided nothing (I6).
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, get_args

from passerelle.channels.hub import Start
from passerelle.channels.task_follower import take_step
from passerelle.channels.views import PlainView, TaskView
from passerelle.core.approval.withdrawal import find_withdrawal
from passerelle.core.errors import Forbidden
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
"""Closed questions that one page looks through: there may be any number, and none that fits."""
_CLOSED: Final[tuple[ClosingState, ...]] = get_args(ClosingState)
_RESOLVED: Final[tuple[ClosingState, ...]] = (
    "allowed",
    "rejected",
    "answered",
    "answered_by_caller",
)


@dataclass(frozen=True, slots=True)
class QuestionPage:
    """Views, the newest question first, or the last to end. ``token`` leads to what comes behind; empty at the end."""

    views: list[JsonObject]
    token: str = ""


@dataclass(frozen=True, slots=True)
class QuestionLists:
    """Looks through the questions of a caller."""

    actions: Actions
    projections: Projections
    arrivals: InboxArrivals

    async def find(self, principal: Principal, query: ListActions) -> QuestionPage:
        """At most ``limit`` views that fit, from their own records: a question in another state is never in it.

        What more are open costs nothing: further ones are read only where some of these are closed by now, or do not
        fit. A token names a time and an id, so what comes or goes meanwhile moves nothing into another page. Of closed
        ones a page may hold fewer, and lead on all the same.

        Raises:
            Forbidden: an agent asks.
            InvalidInput: a page token that is not ours.
            StoreUnavailable: nobody knows.
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
        """A page as it stands on the wire; raises as ``find``."""
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
        """Open questions of a caller that it could see or answer ``before`` and cannot ``now``, and why; newest first.

        Raises:
            StoreUnavailable: nobody knows.
        """
        await self.arrivals.wait(before.key)
        rows = await self.projections.list_inbox(before.key)
        records = [
            record
            for first in range(0, len(rows), _AT_ONCE)
            for record in await self.actions.load_open(
                [action for action, _ in rows[first : first + _AT_ONCE]]
            )
        ]
        return [
            (record.request.action_id, why)
            for record in records
            if (why := find_withdrawal(record, before, now)) is not None
        ]


def require_inbox(principal: Principal) -> None:
    """Raises Forbidden for an agent's own credential: it never decides, and waits for one question by its id."""
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


@dataclass(frozen=True, slots=True)
class QuestionWaits:
    """Reads questions, now or after their next change."""

    actions: Actions
    hub: Hub
    _leaving: asyncio.Event = field(default_factory=asyncio.Event)

    def drain(self) -> None:
        """Everybody who waits, or would from now on, is told how it stands."""
        self._leaving.set()

    async def read(self, principal: Principal, query: GetAction) -> JsonObject:
        """The view of a question; with ``wait_s`` once it is another than ``rev``, or has waited for so long.

        Without ``rev`` it is the revision that stands there when the wait begins. A question that has ended is
        never waited for.

        Raises:
            NotFound: no question of the caller.
            StoreUnavailable: nobody knows where it stands.
        """
        view = await self.actions.read(principal, query.action_id)
        known = query.rev or view["rev"]
        if query.wait_s == 0 or not _stands(view, known):
            return view
        record = find_record(await self.actions.load(query.action_id), query.action_id)
        until_s = asyncio.get_running_loop().time() + query.wait_s
        stream = StreamRef(StreamKind.SESSION, record.scope.session_id)
        shown = TaskView(task) if (task := record.scope.task_id) else PlainView()
        async with self.hub.open(stream, shown, Start.LIVE) as position:
            while True:
                view = await self.actions.read(principal, query.action_id)
                if not _stands(view, known) or not await self._wait(position, until_s):
                    return view

    async def _wait(self, position: Position, until_s: float) -> bool:
        """Until something is stored that may concern the question; False when nobody should wait any longer."""
        step = asyncio.create_task(take_step(position), name="question.wait")
        leaving = asyncio.create_task(self._leaving.wait())
        left_s = until_s - asyncio.get_running_loop().time()
        try:
            await asyncio.wait(
                (step, leaving), timeout=max(left_s, 0), return_when=asyncio.FIRST_COMPLETED
            )
            # After a gap the position ends; how the question stands is read from its own record.
            return step.done() and await step is not None
        finally:
            step.cancel()
            leaving.cancel()


def _stands(view: JsonObject, known: object) -> bool:
    return view["state"] == "pending" and view["rev"] == known
