"""Audits and explains a decision from the event log: every fact of a request, and the chain of its stream.

There is no second audit log that could differ. The chain proves that no event was removed or inserted. That the records
match the facts is checked by ``passerelle verify``. The explanation of a request is read from facts as well (VAL-8).
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Final, Literal

import orjson

from passerelle.a2a_mapping.members import object_at, text_at
from passerelle.core.approval.audience import may_read
from passerelle.core.approval.requests import Audit, AuditedFact, AuditProof
from passerelle.core.errors import NotFound
from passerelle.core.event_chain import extend_chain, start_chain
from passerelle.core.events import Event, decode_event, show_payload
from passerelle.core.frozen import frozen
from passerelle.core.payloads.approval import PermissionEvaluated
from passerelle.core.payloads.governance import HookCompleted, HookFailed, HookStarted
from passerelle.core.ports.log import StreamKind, StreamRef
from passerelle.core.wire.codec import to_wire
from passerelle.permission_bridge.answers.actions import find_record
from passerelle.permission_bridge.views import render_view
from passerelle.runtime.records.places import name_home

if TYPE_CHECKING:
    from collections.abc import Callable

    from passerelle.core.approval.record import ActionRecord
    from passerelle.core.approval.requests import GetAudit
    from passerelle.core.policy.requests import ExplainAction
    from passerelle.core.ports.log import Entry, Head
    from passerelle.core.principal import Principal
    from passerelle.core.wire.json import Json, JsonObject
    from passerelle.permission_bridge.answers.actions import Actions

_PAGE: Final = 512
_TRIES: Final = 8
_BEFORE: Final = 32
"""How far before a request the facts of its hooks may be stored: they share its append."""
_MOST_EVENTS: Final = 2_000
_HOOKS: Final = (HookStarted, HookCompleted, HookFailed)


@frozen
class Auditing:
    """Reads facts with their proof, and the recorded reasons of a request."""

    actions: Actions

    async def read(self, principal: Principal, query: GetAudit) -> JsonObject:
        """The facts that the query selects.

        Raises:
            NotFound: there is no such request, or the caller may not read it.
        """
        if query.action_id is None:
            found = await self._read(name_home(principal), lambda _envelope: True, query)
            return to_wire(found or Audit(()))
        held = await self.actions.load(query.action_id)
        record = find_record(held, query.action_id)
        # The same check as for the request itself: a caller who may not read it learns nothing here either.
        await self.actions.read(principal, query.action_id)
        wanted = _choose(record)
        found = await self._read(record.scope.session_id, wanted, query)
        if found is None:
            raise NotFound("action", query.action_id)
        return to_wire(found)

    async def _read(
        self, session: str, wants: Callable[[JsonObject], bool], query: GetAudit
    ) -> Audit | None:
        """The newest selected facts, read again until the head did not move, so that facts and proof match."""
        stream = StreamRef(StreamKind.SESSION, session)
        for tries in range(_TRIES):
            head = await self.actions.writes.log.read_head(stream)
            if head is None:
                return None
            entries = await self._read_entries(stream)
            if await self.actions.writes.log.read_head(stream) == head or tries == _TRIES - 1:
                wanted = [
                    entry
                    for entry in entries
                    if (query.before is None or entry.sequence < query.before)
                    and wants(orjson.loads(entry.data))
                ]
                proof = AuditProof(
                    session,
                    head.epoch,
                    head.first,
                    head.sequence,
                    head.chain,
                    _judge(head, entries),
                )
                facts = tuple(_show(entry) for entry in wanted[-query.limit :])
                more = len(wanted) > query.limit
                return Audit(facts, proof, more, str(facts[0].sequence) if more else "")
        return None

    async def _read_entries(self, stream: StreamRef) -> list[Entry]:
        entries: list[Entry] = []
        while page := await self.actions.writes.log.read_page(
            stream, entries[-1].sequence if entries else 0, _PAGE
        ):
            entries += page
        return entries

    async def explain(self, principal: Principal, query: ExplainAction) -> JsonObject:
        """The request, its evaluation, and every fact about it in order.

        Raises:
            NotFound: no such request that the caller may see.
        """
        record = find_record(await self.actions.load(query.action_id), query.action_id)
        if not may_read(record, principal):
            raise NotFound("action", query.action_id)
        first, last = record.first_seq - _BEFORE, record.last_seq
        events = await self._read_range(record.scope.session_id, max(0, first - 1), last)
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
                facts.append(_show_reason(event))
        return {"action": render_view(record), "evaluation": evaluation, "facts": facts}

    async def _read_range(self, session: str, after: int, last: int) -> list[Event]:
        stream, found = StreamRef(StreamKind.SESSION, session), list[Event]()
        while len(found) < _MOST_EVENTS and (
            page := await self.actions.writes.log.read_page(stream, after)
        ):
            found += [decode_event(one.data) for one in page if one.sequence <= last]
            after = page[-1].sequence
            if after >= last:
                break
        return found


def _choose(record: ActionRecord) -> Callable[[JsonObject], bool]:
    """Selects the facts of the request, and the evaluation that led to it."""
    action, evaluation = record.request.action_id, record.request.evaluation_id

    def wants(envelope: JsonObject) -> bool:
        said = text_at(object_at(envelope, "payload"), "evaluationId")
        return text_at(envelope, "actionId") == action or (bool(said) and said == evaluation)

    return wants


def _show(entry: Entry) -> AuditedFact:
    hashed = hashlib.sha256(entry.data).hexdigest()
    return AuditedFact(entry.sequence, hashed, orjson.loads(entry.data))


def _judge(head: Head, entries: list[Entry]) -> Literal["whole", "trimmed", "broken"]:
    chain = start_chain(head.epoch) if head.first == 1 else None
    expected = head.first
    for entry in entries:
        if entry.sequence != expected or chain not in {None, entry.previous}:
            return "broken"
        expected, chain = entry.sequence + 1, extend_chain(entry.previous, entry.event_id)
    if expected != head.sequence + 1 or chain not in {None, head.chain}:
        return "broken"
    return "whole" if head.first == 1 else "trimmed"


def _show_reason(event: Event) -> JsonObject:
    # The request itself is in the answer already, so its opening fact has no payload here.
    data = {} if event.type == "action.required" else show_payload(event.fact.payload)
    return {
        "sequence": event.sequence,
        "type": event.type,
        "at": event.timestamp,
        "payload": data,
    }
