"""Agent health for operators: the card, breakers, limits, and calls of the last hour, over all instances.

Each instance publishes a report every few seconds while it has data; the instance that answers a query adds up its own
data and the reports of the live instances. No address or credential of the agent is shown.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Protocol

import orjson

from passerelle.a2a_mapping.members import object_at, text_at
from passerelle.core.errors import InvalidInput, NotFound, StoreUnavailable
from passerelle.core.read_models.agent_health import (
    AgentCalls,
    AgentHealth,
    AgentShare,
    InstanceHealth,
)
from passerelle.core.wire.codec import from_wire, to_wire
from passerelle.core.wire.record import change
from passerelle.core.wire.times import format_ms
from passerelle.runtime.common.beat import until_beat
from passerelle.runtime.common.refresh import HintFollower

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Mapping, Sequence

    from structlog.typing import FilteringBoundLogger

    from passerelle.core.oversight_requests import GetAgentHealth
    from passerelle.core.peer import PeerCard
    from passerelle.core.ports.agents import AgentReports
    from passerelle.core.ports.chance import Clock
    from passerelle.core.principal import Principal
    from passerelle.core.read_models.agent_health import AgentLimits
    from passerelle.core.wire.json import Json, JsonObject
    from passerelle.runtime.observability.call_window import CallReport


PUBLISH_S: Final = 5.0
"""Interval at which changes are published."""
_AGAIN_MS: Final = 25_000
"""Republishing interval of unchanged reports, before they expire."""


class WatchedAgents(Protocol):
    """The configured agents as this process knows them; ``PeerRegistry`` is one."""

    @property
    def names(self) -> tuple[str, ...]:
        """In the order of the configuration."""
        ...

    @property
    def dial_in_names(self) -> tuple[str, ...]:
        """Agents that dial in."""
        ...

    def peek(self, name: str) -> PeerCard | None:
        """The card, if known."""
        ...

    def list_breakers(self, name: str) -> Mapping[str, str]:
        """The state of the breaker of each interface that was used."""
        ...

    def count_links(self, name: str) -> int:
        """Number of sockets of a dial-in agent to this instance."""
        ...

    def describe_limits(self, name: str) -> AgentLimits:
        """The configured limits, and their use on this instance."""
        ...


class WatchedCalls(Protocol):
    """The calls of the last hour; ``CallWindow`` is one."""

    def report(self, agent: str) -> CallReport:
        """The calls to an agent."""
        ...

    def report_all(self) -> Mapping[str, CallReport]:
        """The same for every agent that was called."""
        ...

    def find_card_since(self, agent: str) -> int | None:
        """When its card last changed, in ms."""
        ...

    def find_quantile(self, times: Sequence[int], percent: int) -> float | None:
        """The percentile of the answer times in seconds, from the histogram ``CallReport.times``."""
        ...


@dataclass(slots=True)
class AgentWatch:
    """Answers health queries, and publishes this instance's report."""

    agents: WatchedAgents | None
    calls: WatchedCalls | None
    clock: Clock
    count_driven: Callable[[], Mapping[str, int]]
    """Number of runs driven here, by agent."""
    name_instance: Callable[[], str]
    reports: AgentReports
    list_instances: Callable[[], tuple[str, ...]]
    """The live instances."""
    _published: bytes = field(default=b"", init=False)
    _published_ms: int = field(default=0, init=False)

    async def read(self, principal: Principal, query: GetAgentHealth) -> JsonObject:
        """The health of an agent that the reader may see.

        Raises:
            NotFound: there is no agent of that name, or the reader does not see it.
        """
        name, agents, calls = query.name, self.agents, self.calls
        if agents is None or calls is None:
            raise NotFound("agent", name)
        if name not in agents.names or not principal.sees(name):
            raise NotFound("agent", name)
        instance, now_ms = self.name_instance(), self.clock.now_ms()
        own = _share(agents, name, calls.report(name), self.count_driven().get(name, 0))
        others, alone = await self._ask_others(instance, name)
        shares = {instance: (now_ms, own), **others}
        card, modes = agents.peek(name), agents.list_breakers(name)
        since_ms, used = calls.find_card_since(name), [one for _, one in shares.values()]
        limits = agents.describe_limits(name)
        in_use = [one.in_use for one in used if one.in_use is not None]
        links = [one.links for one in used if one.links is not None]
        return to_wire(
            AgentHealth(
                name=name,
                at=format_ms(now_ms),
                instance=instance,
                status=own.status,
                calls=_add_calls(calls, used),
                limits=change(
                    limits,
                    in_use=sum(in_use) if in_use else limits.in_use,
                    used_up=any(one.used_up for one in used),
                ),
                card_since=None if since_ms is None or card is None else format_ms(since_ms),
                version=None if card is None else text_at(card.card, "version"),
                protocol=None if card is None else card.protocol,
                signature=None if card is None else card.signature,
                breakers=dict(sorted(modes.items())),
                rests=own.rests,
                links=sum(links) if links else None,
                runs=sum(one.runs for one in used),
                instances=tuple(
                    _show_instance(who, at_ms, one) for who, (at_ms, one) in sorted(shares.items())
                ),
                alone=alone,
            )
        )

    @asynccontextmanager
    async def follow(self, log: FilteringBoundLogger) -> AsyncGenerator[None]:
        """Publishes reports while the context is open."""
        publishing = HintFollower("agent_reports", self.publish, None, log, _find_round_s)
        async with publishing.repeat():
            yield

    async def publish(self) -> None:
        """Publishes changes, and unchanged data before it expires; nothing if there is none.

        Raises:
            StoreUnavailable: retried at the next round.
        """
        agents, calls = self.agents, self.calls
        if agents is None or calls is None or len(self.list_instances()) <= 1:
            return  # there are no other instances
        reports, driven = calls.report_all(), self.count_driven()
        seen: dict[str, Json] = {}
        for name in agents.names:
            report, runs = reports.get(name), driven.get(name, 0)
            if (report and report.outcomes) or runs or name in agents.dial_in_names:
                share = _share(agents, name, report or calls.report(name), runs)
                if share.outcomes or share.runs or share.links:
                    seen[name] = to_wire(share)
        now_ms, shares = self.clock.now_ms(), orjson.dumps(seen) if seen else b""
        if shares == self._published and (not shares or now_ms - self._published_ms < _AGAIN_MS):
            return
        await self.reports.put(self.name_instance(), orjson.dumps({"at": now_ms, "agents": seen}))
        self._published, self._published_ms = shares, now_ms

    async def _ask_others(
        self, instance: str, name: str
    ) -> tuple[dict[str, tuple[int, AgentShare]], bool]:
        """The other instances' reports about an agent, and whether they could not be read."""
        others = [one for one in self.list_instances() if one != instance]
        try:
            said = await self.reports.read(others)
        except StoreUnavailable:
            return {}, True
        found = {who: _read_report(report, name) for who, report in said.items()}
        return {who: one for who, one in found.items() if one is not None}, False


def _find_round_s() -> float:
    return until_beat(asyncio.get_running_loop().time(), PUBLISH_S)


def _share(agents: WatchedAgents, name: str, report: CallReport, runs: int) -> AgentShare:
    """This instance's data about an agent."""
    card, modes = agents.peek(name), agents.list_breakers(name)
    limits = agents.describe_limits(name)
    return AgentShare(
        status="unknown" if card is None else "stale" if card.stale else "ready",
        since_ms=report.since_ms,
        outcomes=report.outcomes,
        times=report.times,
        answered_ms=report.answered_ms,
        failed_ms=report.failed_ms,
        rests=bool(modes) and "closed" not in modes.values(),
        runs=runs,
        links=agents.count_links(name) if name in agents.dial_in_names else None,
        in_use=limits.in_use,
        used_up=limits.used_up,
    )


def _read_report(report: bytes, name: str) -> tuple[int, AgentShare] | None:
    """The time and content of a report about an agent; None if it has none, or in another format."""
    content: JsonObject = orjson.loads(report)
    at_ms, share = content.get("at"), object_at(object_at(content, "agents"), name)
    if not share or not isinstance(at_ms, int):
        return None
    try:
        return at_ms, from_wire(AgentShare, share, newer=True)
    except InvalidInput:
        return None  # of another version


def _show_instance(who: str, at_ms: int, share: AgentShare) -> InstanceHealth:
    return InstanceHealth(
        who,
        format_ms(at_ms),
        share.status,
        share.rests,
        share.runs,
        share.links,
        share.outcomes,
    )


def _add_calls(calls: WatchedCalls, shares: Sequence[AgentShare]) -> AgentCalls:
    outcomes = Counter[str]()
    for share in shares:
        outcomes.update(share.outcomes)
    longest = max(len(share.times) for share in shares)
    alike = [share.times for share in shares if len(share.times) == longest]
    times = [sum(column) for column in zip(*alike, strict=True)]
    answered = [one.answered_ms for one in shares if one.answered_ms is not None]
    failed = [one.failed_ms for one in shares if one.failed_ms is not None]
    return AgentCalls(
        since=format_ms(min(share.since_ms for share in shares)),
        outcomes=dict(sorted(outcomes.items())),
        p50_ms=_show_s(calls.find_quantile(times, 50)),
        p95_ms=_show_s(calls.find_quantile(times, 95)),
        answered_at=format_ms(max(answered)) if answered else None,
        failed_at=format_ms(max(failed)) if failed else None,
    )


def _show_s(seconds: float | None) -> int | None:
    return None if seconds is None else max(1, round(seconds * 1000))
