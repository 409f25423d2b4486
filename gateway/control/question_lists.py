"""Open questions of a caller that are of one kind, from one risk on, or of one task."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from passerelle.core.ids import parse_facade
from passerelle.permission_bridge.risk import RISKS

if TYPE_CHECKING:
    from passerelle.core.commands import ListActions
    from passerelle.core.json import JsonObject
    from passerelle.core.ports.projections import Projections
    from passerelle.core.principal import Principal
    from passerelle.gateway.control.actions import Actions

_AT_ONCE: Final = 100


@dataclass(frozen=True, slots=True)
class QuestionLists:
    """Looks through the open questions of a caller, the newest first."""

    actions: Actions
    projections: Projections

    async def find(self, principal: Principal, query: ListActions) -> list[JsonObject]:
        """At most ``limit`` views that fit.

        Raises:
            StoreUnavailable: nobody knows.
        """
        waiting = await self.projections.list_inbox(principal.key)
        views: list[JsonObject] = []
        for first in range(0, len(waiting), _AT_ONCE):
            page = await self.actions.read_open(principal, waiting[first : first + _AT_ONCE])
            views += [view for view in page if _fits(view, query)]
            if len(views) >= query.limit:
                break
        return views[: query.limit]


def _fits(view: JsonObject, query: ListActions) -> bool:
    if query.kind is not None and view["kind"] != query.kind:
        return False
    if query.risk is not None and view["risk"] not in RISKS[RISKS.index(query.risk) :]:
        return False
    if query.task is None:
        return True
    parsed = parse_facade(query.task)
    return parsed is not None and view.get("taskId") == parsed[0]
