"""Evaluates other rules on recent cases: reads facts only, and writes nothing (VAL-8)."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, aclosing, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from passerelle.core.events import Event, decode_event
from passerelle.core.frozen import frozen
from passerelle.core.payloads.approval import PermissionEvaluated
from passerelle.core.policy.requests import PolicyTried, ReplayedCase
from passerelle.core.ports.log import StreamKind, StreamRef
from passerelle.core.wire.codec import to_wire
from passerelle.core.wire.times import parse_ms
from passerelle.permission_bridge.recorded_cases import judge_again

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Iterable

    from passerelle.core.policy.requests import TryPolicy
    from passerelle.core.ports.log import EventLog
    from passerelle.core.principal import Principal
    from passerelle.core.wire.json import JsonObject
    from passerelle.permission_bridge.rules import Policy
    from passerelle.runtime.records.task_lists import TaskLists

_MOST_EVENTS: Final = 2_000
_MOST_SESSIONS: Final = 100
_MOST_S: Final = 5.0
"""Time limit for the cases of many callers: an urgent rule must not be delayed."""


@frozen
class PolicyDryRun:
    """Tries rules on recorded cases. ``list_callers`` are the configured callers."""

    records: TaskLists
    log: EventLog
    list_callers: Callable[[], Iterable[Principal]]
    read_policy: Callable[[JsonObject], Policy]
    """Parses the section ``policy`` of a configuration; raises InvalidInput."""

    async def try_policy(self, principal: Principal, query: TryPolicy) -> JsonObject:
        """The decisions of the given rules on recent cases of the caller.

        Raises:
            InvalidInput: the policy is invalid; the field is named.
        """
        policy = self.read_policy(query.policy)
        cases = [one async for one in self._try_all([principal], policy, query.limit)]
        return to_wire(_count(policy, cases))

    async def compare(
        self, principal: Principal, policy: Policy, in_force: Policy, limit: int
    ) -> PolicyTried:
        """Compares a policy with the one in force, on the recent cases of all known callers.

        Decisions recorded at the time do not count: other rules may have been in force. Callers take turns, so that the
        busiest one does not hide the others.
        """
        callers = {one.key: one for one in (principal, *self.list_callers())}
        cases: list[ReplayedCase] = []
        with suppress(TimeoutError):
            async with asyncio.timeout(_MOST_S):
                async for one in self._try_all(callers.values(), policy, limit, in_force):
                    cases.append(one)  # noqa: PERF401  cases found before the timeout count
        tried = _count(policy, cases)
        return replace(
            tried, cases=tuple(one for one in cases if one.now not in {None, one.before})
        )

    async def _try_all(
        self,
        callers: Iterable[Principal],
        policy: Policy,
        limit: int,
        in_force: Policy | None = None,
    ) -> AsyncGenerator[ReplayedCase]:
        async with AsyncExitStack() as stack:
            walks = [
                await stack.enter_async_context(aclosing(self._walk(caller))) for caller in callers
            ]
            tried = 0
            while walks:
                for walk in tuple(walks):
                    if tried == limit:
                        return
                    found = await anext(walk, None)
                    if found is None:
                        walks.remove(walk)
                        continue
                    tried += 1
                    yield _try(*found, policy, in_force)

    async def _walk(
        self, principal: Principal
    ) -> AsyncGenerator[tuple[Event, PermissionEvaluated]]:
        """Evaluations in a caller's sessions, sessions with the newest tasks first, each from its end."""
        seen: dict[str, None] = {}
        async for _, held in self.records.walk(self.records.list_all(principal, None, None)):
            session = getattr(held.record, "session_id", None)
            if not isinstance(session, str) or session in seen:
                continue
            if len(seen) == _MOST_SESSIONS:
                return
            seen[session] = None
            for event in reversed(await self._read_end(session)):
                payload = event.fact.payload
                if isinstance(payload, PermissionEvaluated) and not payload.consumes:
                    yield event, payload

    async def _read_end(self, session: str) -> list[Event]:
        stream, found = StreamRef(StreamKind.SESSION, session), list[Event]()
        head = await self.log.read_head(stream)
        last = head.sequence if head else 0
        after = max(0, last - _MOST_EVENTS)
        while after < last and (page := await self.log.read_page(stream, after)):
            found += [decode_event(one.data) for one in page if one.sequence <= last]
            after = page[-1].sequence
        return found


def _count(policy: Policy, cases: list[ReplayedCase]) -> PolicyTried:
    changed = sum(one.now not in {None, one.before} for one in cases)
    return PolicyTried(policy.version, len(cases), changed, tuple(cases))


def _try(
    event: Event, recorded: PermissionEvaluated, policy: Policy, in_force: Policy | None
) -> ReplayedCase:
    at_ms = parse_ms(event.timestamp)
    found = judge_again(recorded, policy, at_ms)
    current = judge_again(recorded, in_force, at_ms) if in_force is not None else None
    before = recorded if current is None else current
    return ReplayedCase(
        evaluation_id=recorded.evaluation_id,
        task_id=event.fact.scope.task_id or "",
        at=event.timestamp,
        subject=recorded.subject,
        before=before.decision,
        rules_before=before.rules,
        now=found.decision if found else None,
        source=found.source if found else None,
        rules=found.rules if found else (),
    )
