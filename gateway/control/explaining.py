"""Why a question was asked and what became of it, and what other rules would have said: read from the facts (VAL-8)."""

from __future__ import annotations

from contextlib import aclosing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from passerelle.core.approval_audience import may_read
from passerelle.core.codec import to_wire
from passerelle.core.errors import InvalidInput, NotFound
from passerelle.core.events import Event, decode_event, show_payload
from passerelle.core.payloads.approval import PermissionEvaluated
from passerelle.core.payloads.governance import HookCompleted, HookFailed, HookStarted
from passerelle.core.policy_requests import PolicyTried, Tried
from passerelle.core.ports.log import StreamKind, StreamRef
from passerelle.core.times import parse_ms
from passerelle.gateway.control.actions import find_record
from passerelle.gateway.settings_policy import PolicySettings, read_policy
from passerelle.permission_bridge.recorded_cases import judge_again
from passerelle.permission_bridge.views import render_view

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from passerelle.core.json import Json, JsonObject
    from passerelle.core.policy_requests import ExplainAction, TryPolicy
    from passerelle.core.ports.log import EventLog
    from passerelle.core.principal import Principal
    from passerelle.gateway.control.actions import Actions
    from passerelle.gateway.control.records import Records
    from passerelle.permission_bridge.rules import Policy

_BEFORE: Final = 32
"""How far before a question the hooks that were heard about it may stand: they share its append."""
_MOST_EVENTS: Final = 2_000
_MOST_SESSIONS: Final = 100
_HOOKS: Final = (HookStarted, HookCompleted, HookFailed)
_TRIED: Final = frozenset({"rules", "owners", "mode", "grants"})


@dataclass(frozen=True, slots=True)
class Explaining:
    """Reads what was recorded."""

    actions: Actions
    records: Records
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

    async def try_policy(self, principal: Principal, query: TryPolicy) -> JsonObject:
        """What other rules say to what was asked lately.

        Raises:
            InvalidInput: the policy is not one; the field is named.
        """
        policy = _read_policy(query.policy)
        cases: list[Tried] = []
        async with aclosing(self._walk(principal)) as events:
            async for event in events:
                if len(cases) == query.limit:
                    break
                payload = event.fact.payload
                if isinstance(payload, PermissionEvaluated) and not payload.consumes:
                    cases.append(_try(event, payload, policy))
        changed = sum(one.now not in {None, one.before} for one in cases)
        return to_wire(PolicyTried(policy.version, len(cases), changed, tuple(cases)))

    async def _walk(self, principal: Principal) -> AsyncGenerator[Event]:
        """Events of the caller's sessions, those with the newest tasks first, each from its end."""
        seen: dict[str, None] = {}
        async for _, held in self.records.walk(self.records.list_all(principal, None, None)):
            session = getattr(held.record, "session_id", None)
            if not isinstance(session, str) or session in seen:
                continue
            if len(seen) == _MOST_SESSIONS:
                return
            seen[session] = None
            head = await self.log.read_head(StreamRef(StreamKind.SESSION, session))
            last = head.sequence if head else 0
            for event in reversed(await self._read(session, max(0, last - _MOST_EVENTS), last)):
                yield event

    async def _read(self, session: str, after: int, last: int) -> list[Event]:
        stream, found = StreamRef(StreamKind.SESSION, session), list[Event]()
        while len(found) < _MOST_EVENTS and (page := await self.log.read_page(stream, after)):
            found += [decode_event(one.data) for one in page if one.sequence <= last]
            after = page[-1].sequence
            if after >= last:
                break
        return found


def _read_policy(given: JsonObject) -> Policy:
    for name in given:
        if name not in _TRIED:
            # What hooks said then counts; they are not asked again, and no code is loaded for a question.
            raise InvalidInput(f"policy.{name}", "cannot be tried")
    try:
        return read_policy(PolicySettings.model_validate(given))
    except ValueError as wrong:
        raise InvalidInput("policy", str(wrong).splitlines()[-1].strip()) from None


def _try(event: Event, recorded: PermissionEvaluated, policy: Policy) -> Tried:
    found = judge_again(recorded, policy, parse_ms(event.timestamp))
    return Tried(
        evaluation_id=recorded.evaluation_id,
        task_id=event.fact.scope.task_id or "",
        at=event.timestamp,
        subject=recorded.subject,
        before=recorded.decision,
        rules_before=recorded.rules,
        now=found.decision if found else None,
        source=found.source if found else None,
        rules=found.rules if found else (),
    )


def _show(event: Event) -> JsonObject:
    # The question itself stands beside its facts.
    data = {} if event.type == "action.required" else show_payload(event.fact.payload)
    return {
        "sequence": event.sequence,
        "type": event.type,
        "at": event.timestamp,
        "payload": data,
    }
