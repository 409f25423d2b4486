"""Why a question was asked and what became of it: read from the facts (VAL-8)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from passerelle.core.approval.audience import may_read
from passerelle.core.errors import NotFound
from passerelle.core.events import Event, decode_event, show_payload
from passerelle.core.payloads.approval import PermissionEvaluated
from passerelle.core.payloads.governance import HookCompleted, HookFailed, HookStarted
from passerelle.core.ports.log import StreamKind, StreamRef
from passerelle.core.wire.codec import to_wire
from passerelle.permission_bridge.answers.actions import find_record
from passerelle.permission_bridge.views import render_view

if TYPE_CHECKING:
    from passerelle.core.policy.requests import ExplainAction
    from passerelle.core.ports.log import EventLog
    from passerelle.core.principal import Principal
    from passerelle.core.wire.json import Json, JsonObject
    from passerelle.permission_bridge.answers.actions import Actions

_BEFORE: Final = 32
"""How far before a question the hooks that were heard about it may stand: they share its append."""
_MOST_EVENTS: Final = 2_000
_HOOKS: Final = (HookStarted, HookCompleted, HookFailed)


@dataclass(frozen=True, slots=True)
class Explaining:
    """Reads what was recorded."""

    actions: Actions
    log: EventLog

    async def explain(self, principal: Principal, query: ExplainAction) -> JsonObject:
        """The question, how it was judged, and every fact about it in its order.

        Raises:
            NotFound: no such question that the caller may see.
        """
        record = find_record(await self.actions.load(query.action_id), query.action_id)
        if not may_read(record, principal):
            raise NotFound("action", query.action_id)
        first, last = record.first_seq - _BEFORE, record.last_seq
        events = await self._read(record.scope.session_id, max(0, first - 1), last)
        facts: list[Json] = []
        evaluation: JsonObject | None = None
        for event in events:
            payload = event.fact.payload
            is_about = event.fact.scope.action_id == query.action_id
            if isinstance(payload, PermissionEvaluated) and (
                payload.evaluation_id == record.request.evaluation_id
            ):
                evaluation, is_about = to_wire(payload), True
            is_hook = isinstance(payload, _HOOKS) and (
                event.fact.scope.task_id == record.scope.task_id
                and event.sequence < record.first_seq
            )
            if is_about or is_hook:
                facts.append(_show(event))
        return {"action": render_view(record), "evaluation": evaluation, "facts": facts}

    async def _read(self, session: str, after: int, last: int) -> list[Event]:
        stream, found = StreamRef(StreamKind.SESSION, session), list[Event]()
        while len(found) < _MOST_EVENTS and (page := await self.log.read_page(stream, after)):
            found += [decode_event(one.data) for one in page if one.sequence <= last]
            after = page[-1].sequence
            if after >= last:
                break
        return found


def _show(event: Event) -> JsonObject:
    # The question itself stands beside its facts.
    data = {} if event.type == "action.required" else show_payload(event.fact.payload)
    return {
        "sequence": event.sequence,
        "type": event.type,
        "at": event.timestamp,
        "payload": data,
    }
