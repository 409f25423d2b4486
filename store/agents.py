"""Agents that dial in: the links that serve them, their cards, and the runs that wait for them.

All of it is in the shard of the agent's name. A waiting run is noted in addition to the due row that its task has in
its own shard: the note makes it fast, the due row makes it certain (I9).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from passerelle.core.ids import Shard, derive_shard
from passerelle.core.ports.agents import AgentCancelled, AgentOffered, AgentRegistered, AgentServed
from passerelle.store import keys
from passerelle.store.connection import pack
from passerelle.store.replies import as_hash, as_int, as_ms, as_texts
from passerelle.store.scripts import Script

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from passerelle.core.ports.agents import AgentUpdate
    from passerelle.store.hints import RedisHints
    from passerelle.store.nodes import Nodes


KEEP_MS: Final = 30 * 24 * 3600 * 1000
_WAITING_MS: Final = 24 * 3600 * 1000
_REPORT_MS: Final = 60_000
_REGISTERED: Final = re.compile(r"r ([!-~]+) ([0-9]+) ([01])")
_OFFERED: Final = re.compile(r"o ([!-~]+) ([!-~]+)")
_CANCELLED: Final = re.compile(r"c ([!-~]+)")
_KEEP_AGENT: Final = Script("keep_agent", lambda reply: reply == 1)
_REGISTER_AGENT: Final = Script("register_agent", as_int)


class RedisAgents:
    """``core.ports.agents.DialedInAgents`` over a server or cluster."""

    def __init__(self, nodes: Nodes, hints: RedisHints) -> None:
        self._nodes = nodes
        self._hints = hints

    async def register(
        self, agent: str, link: str, instance: str, card: bytes, *, hold_ms: int, pool: bool
    ) -> int:
        """Registers a link; without ``pool`` older links are removed.

        Retried after a lost reply: an unused generation does no harm.

        Raises:
            StoreUnavailable: the outcome is unknown.
        """
        shard = _place(agent)
        return await self._nodes.run(
            _REGISTER_AGENT,
            shard,
            [keys.agent(shard, agent), keys.agent_hints(shard, agent)],
            {"link": link, "instance": instance, "hold": hold_ms, "keep": KEEP_MS, "pool": pool},
            [card],
        )

    async def keep(
        self, agent: str, link: str, instance: str, generation: int, *, hold_ms: int
    ) -> bool:
        """Renews a link; False if a newer link has replaced it.

        Raises:
            StoreUnavailable: the outcome is unknown.
        """
        shard = _place(agent)
        return await self._nodes.run(
            _KEEP_AGENT,
            shard,
            [keys.agent(shard, agent)],
            {
                "link": link,
                "instance": instance,
                "gen": str(generation),
                "hold": hold_ms,
                "keep": KEEP_MS,
            },
        )

    async def unregister(self, agent: str, link: str) -> None:
        """Removes a link; the card stays."""
        shard = _place(agent)
        command = pack("HDEL", keys.agent(shard, agent), f"l:{link}")
        await self._nodes.update(shard, command)

    async def read(self, agent: str) -> AgentServed | None:
        """The last card and the links that serve the agent; None for one that never dialled in."""
        shard = _place(agent)
        fields, time = await self._nodes.query_all(
            shard, pack("HGETALL", keys.agent(shard, agent)), pack("TIME")
        )
        found, now_ms = as_hash(fields), as_ms(time)
        if "card" not in found:
            return None
        links = {
            name[2:]: value.split(b" ") for name, value in found.items() if name.startswith("l:")
        }
        live = {link: held[0].decode() for link, held in links.items() if int(held[2]) >= now_ms}
        return AgentServed(found["card"], int(found["gen"]), live)

    async def offer(self, agent: str, task: str, turn: str = "") -> None:
        """Notes a task that waits for the agent and notifies its links; ``turn``: a message to the task that waits."""
        shard = _place(agent)
        waiting = keys.agent_waiting(shard, agent)
        hint = pack("SPUBLISH", keys.agent_hints(shard, agent), f"o {task} {turn or '-'}")
        if not turn:
            await self._nodes.update(shard, pack("ZADD", waiting, "0", task))
            await self._nodes.update(shard, pack("PEXPIRE", waiting, str(_WAITING_MS)))
        await self._nodes.write(shard, hint)

    async def list_waiting(self, agent: str) -> list[str]:
        """Tasks that were offered and not taken yet, as noted."""
        shard = _place(agent)
        command = pack("ZRANGE", keys.agent_waiting(shard, agent), "0", "-1")
        return await self._nodes.query(shard, command, as_texts)

    async def forget(self, agent: str, task: str) -> None:
        """Removes a task from the waiting ones."""
        shard = _place(agent)
        command = pack("ZREM", keys.agent_waiting(shard, agent), task)
        await self._nodes.update(shard, command)

    async def cancel(self, agent: str, remote: str) -> None:
        """Notifies the links of the agent that one of its tasks is cancelled."""
        shard = _place(agent)
        await self._nodes.write(
            shard, pack("SPUBLISH", keys.agent_hints(shard, agent), f"c {remote}")
        )

    async def listen(self, agent: str, on_update: Callable[[AgentUpdate], None]) -> None:
        """Subscribes to updates about the agent; returns once the subscription is confirmed.

        Raises:
            StoreUnavailable: not confirmed in time; nothing is subscribed then.
        """
        shard = _place(agent)

        def take(raw: bytes) -> None:
            news = _parse(raw.decode("latin-1"))
            if news is not None:
                on_update(news)

        await self._hints.listen(shard, keys.agent_hints(shard, agent), take)

    async def ignore(self, agent: str) -> None:
        """Ends the subscription of ``listen``."""
        shard = _place(agent)
        await self._hints.ignore(shard, keys.agent_hints(shard, agent))


def _parse(text: str) -> AgentUpdate | None:
    if said := _REGISTERED.fullmatch(text):
        return AgentRegistered(said[1], int(said[2]), pool=said[3] == "1")
    if said := _OFFERED.fullmatch(text):
        return AgentOffered(said[1], "" if said[2] == "-" else said[2])
    if said := _CANCELLED.fullmatch(text):
        return AgentCancelled(said[1])
    return None


def _place(agent: str) -> Shard:
    return derive_shard("agent", agent)


class RedisAgentReports:
    """``core.ports.agents.AgentReports``. All raise StoreUnavailable where the store does not answer."""

    def __init__(self, nodes: Nodes) -> None:
        self._nodes = nodes

    async def put(self, instance: str, report: bytes) -> None:
        """Replaces the instance's report; it expires after ``_REPORT_MS``."""
        name = keys.agent_report(Shard(0), instance)
        await self._nodes.update(Shard(0), pack("SET", name, report, "PX", _REPORT_MS))

    async def read(self, instances: Sequence[str]) -> Mapping[str, bytes]:
        """The reports of these instances, in one round trip; instances without a report are missing."""
        if not instances:
            return {}
        commands = [pack("GET", keys.agent_report(Shard(0), one)) for one in instances]
        found = await self._nodes.query_all(Shard(0), *commands)
        said = zip(instances, found, strict=True)
        return {name: report for name, report in said if isinstance(report, bytes)}
