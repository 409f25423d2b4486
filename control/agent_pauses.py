"""Pauses, drains and resumes agents, for every instance and through restarts.

Each change is a fact in the home session of the gateway's owner (``limit.changed``); its record lists the agents that
get no new work. An instance caches the list: it reads it at startup and once a second.
"""

from __future__ import annotations

import asyncio
from dataclasses import field
from typing import TYPE_CHECKING, Final, TypeAlias, assert_never

from passerelle.core.agent_name import find_base
from passerelle.core.batch import EntityKind, EntityRef
from passerelle.core.errors import Forbidden, NotFound
from passerelle.core.events import Fact
from passerelle.core.facts import Scope
from passerelle.core.frozen import frozen
from passerelle.core.ids import shard_of
from passerelle.core.oversight_requests import (
    AgentChanged,
    DrainAgent,
    PauseAgent,
    ResumeAgent,
)
from passerelle.core.payloads.limit import LimitChanged, LimitSubject
from passerelle.core.principal import OWNER
from passerelle.core.session.machine import SessionRecord
from passerelle.delegation.runs.holds import FIRST_LOOK_MS, QUEUED
from passerelle.runtime.common.refresh import HintFollower
from passerelle.runtime.records.idempotency import make_once
from passerelle.runtime.records.places import name_home, open_home
from passerelle.runtime.records.writes import AppendOptions

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping
    from contextlib import AbstractAsyncContextManager

    from structlog.typing import FilteringBoundLogger

    from passerelle.control.handlers import Handlers
    from passerelle.core.decision import Decision, Held
    from passerelle.core.ids import Shard
    from passerelle.core.payloads.limit import AgentState
    from passerelle.core.ports.queues import QueueStore
    from passerelle.core.principal import Principal
    from passerelle.core.session.machine import PausedAgent
    from passerelle.runtime.limits.pauses import AgentPauses
    from passerelle.runtime.records.idempotency import Once
    from passerelle.runtime.records.writes import Writes

_HOME: Final = name_home(OWNER)
_SESSION: Final = EntityRef(EntityKind.SESSION, _HOME)
ROUND_S: Final = 1.0
"""Maximum delay until other instances apply a pause."""
_PLACE_MS: Final = 10
"""Spacing of the checks of waiting tasks after a resume: most have started before."""
_Change: TypeAlias = PauseAgent | DrainAgent | ResumeAgent


@frozen
class AgentPausing:
    """Writes and reads the paused agents; ``pauses`` is the cache that every message checks."""

    writes: Writes
    pauses: AgentPauses
    queues: QueueStore
    hasten: Callable[[Shard, Mapping[str, int]], Awaitable[object]]
    """Moves due rows forward that would come due later than the given ms."""
    list_names: Callable[[], tuple[str, ...]]
    """The configured agents."""
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Serializes reads and writes: an older read must not overwrite a newer write."""

    def register(self, handlers: Handlers) -> None:
        """Registers the commands."""
        handlers.on_command(PauseAgent, self.change)
        handlers.on_command(DrainAgent, self.change)
        handlers.on_command(ResumeAgent, self.change)

    async def refresh(self) -> None:
        """Applies the stored pauses here.

        Raises:
            StoreUnavailable: the previous pauses stay in force.
        """
        async with self.turn:
            self._take(await self.writes.load_one(_SESSION))

    def follow(self, log: FilteringBoundLogger) -> AbstractAsyncContextManager[None]:
        """Applies the stored pauses before it returns, then follows them. Raises StoreUnavailable."""
        return HintFollower("pauses", self.refresh, None, log, lambda: ROUND_S).follow()

    async def change(
        self, principal: Principal, command: _Change, idem: str | None
    ) -> AgentChanged:
        """Pauses, drains or resumes an agent; without effect if it is in that state already.

        Raises:
            NotFound: no such agent of the caller.
            Forbidden: a caller of another tenant: a pause applies to all tenants.
            StoreUnavailable: nothing is changed, or the outcome is unknown.
            IdempotencyConflict: the key was used for another request.
        """
        name = find_base(command.name)
        if command.name not in self.list_names() or not principal.sees(name):
            raise NotFound("agent", command.name)
        if principal.tenant != OWNER.tenant:
            raise Forbidden("a pause applies to all tenants", tenant=principal.tenant)
        once = make_once(principal, command, idem)
        is_repeated = await once.find(self.writes.log, OWNER.home) is not None
        await self.refresh()
        wanted, reason = _read_command(command)
        current = self.pauses.find(name)
        is_same = (current.state if current else "active") == wanted and (
            current is None or reason in {None, current.reason}
        )
        if not (is_repeated or is_same):
            if wanted == "active":
                await self._schedule_checks(name)
            await self._write(name, wanted, reason, principal, once)
        [waiting] = await self.queues.count([name])
        return self._render(name, waiting, is_repeated=is_repeated)

    async def _schedule_checks(self, name: str) -> None:
        """Schedules an early check of each task that waits for the agent: an instance that starts one may crash.

        Done before the agent is resumed, so that no task is started whose due row comes late.
        """
        rows = dict["Shard", dict[str, int]]()
        for place, task in enumerate(await self.queues.list_waiting(name)):
            of_shard = rows.setdefault(shard_of(task), {})
            of_shard[f"{QUEUED}:{task}"] = FIRST_LOOK_MS + place * _PLACE_MS
        await asyncio.gather(*(self.hasten(shard, after_ms) for shard, after_ms in rows.items()))

    async def _write(
        self, name: str, wanted: AgentState, reason: str | None, principal: Principal, once: Once
    ) -> None:
        async with self.turn:

            def body(decision: Decision) -> AppendOptions:
                open_home(decision, _SESSION, OWNER)
                was_held = name in (_read_paused(decision.state(_SESSION)) or {})
                changed = LimitChanged(
                    limited=LimitSubject("peer", name),
                    kind="concurrency",
                    unit="slots",
                    old=0 if was_held else None,
                    new=None if wanted == "active" else 0,
                    actor=principal.id,
                    agent_state=wanted,
                    reason=reason,
                )
                decision.add([Fact(Scope(_HOME), changed)])
                return AppendOptions(idem=once.remember(name))

            written = await self.writes.change(_HOME, [_SESSION], body)
            self._take(written.held[_SESSION])

    def _take(self, held: Held) -> None:
        self.pauses.take(_read_paused(held.record) or {})

    def _render(self, name: str, waiting: int, *, is_repeated: bool) -> AgentChanged:
        current = self.pauses.find(name)
        if current is None:
            return AgentChanged(name, "active", waiting, repeated=is_repeated)
        return AgentChanged(
            name, current.state, waiting, current.by, current.at, current.reason, is_repeated
        )


def _read_command(command: _Change) -> tuple[AgentState, str | None]:
    match command:
        case PauseAgent(reason=reason):
            return "paused", reason
        case DrainAgent(reason=reason):
            return "draining", reason
        case ResumeAgent():
            return "active", None
        case _:
            assert_never(command)


def _read_paused(record: object) -> dict[str, PausedAgent] | None:
    return record.pauses if isinstance(record, SessionRecord) else None
