"""Outgoing queues of agents, in the shard of the agent's name: four keys each, none while the queue is empty."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from passerelle.core.ids import derive_shard, shard_of
from passerelle.core.ports.queues import TaskAdded
from passerelle.store import keys
from passerelle.store.connection import pack
from passerelle.store.replies import as_int, as_text, as_texts
from passerelle.store.scripts import Script

if TYPE_CHECKING:
    from collections.abc import Sequence

    from passerelle.core.ids import Shard
    from passerelle.core.ports.queues import WaitingTask
    from passerelle.store.connection import RespValue
    from passerelle.store.nodes import Nodes

_HIGHEST: Final = 100


def _read_added(reply: RespValue) -> TaskAdded:
    is_new, position = map(as_int, reply) if isinstance(reply, list) else (0, 0)
    return TaskAdded(is_new == 1, position)


_ADD: Final = Script("queue_add", _read_added)
_TAKE: Final = Script("queue_take", as_text)
_DROP: Final = Script("queue_drop", lambda reply: reply == 1)


class RedisQueues:
    """``core.ports.queues.QueueStore`` over a server or cluster."""

    def __init__(self, nodes: Nodes) -> None:
        self._nodes = nodes

    async def add(self, agent: str, task: WaitingTask) -> TaskAdded:
        """Retried after a lost reply: a queued task keeps its position."""
        # Of fixed width, so that texts sort as numbers.
        order = f"{_HIGHEST - task.priority:03d}{task.since_ms:015d}"
        control = {"task": task.task_id, "caller": task.caller, "order": order}
        shard = _place(agent)
        return await self._nodes.run(_ADD, shard, keys.queue(shard, agent), control)

    async def take(self, agent: str, unused: str = "") -> str | None:
        """Not retried here: a repeat would take another task."""
        shard, control = _place(agent), {"unused": unused}
        return await self._nodes.run_once(_TAKE, shard, keys.queue(shard, agent), control) or None

    async def drop(self, agent: str, task_id: str) -> bool:
        """Whether it was queued, by the last try."""
        shard = _place(agent)
        return await self._nodes.run(_DROP, shard, keys.queue(shard, agent), {"task": task_id})

    async def list_waiting(self, agent: str, most: int | None = None) -> list[str]:
        """The queue, caller by caller: the queue of a context or a quota has only one."""
        shard, last = _place(agent), -1 if most is None else most - 1
        command = pack("ZRANGE", keys.queue(shard, agent)[0], "0", f"{last}")
        members = await self._nodes.query(shard, command, as_texts)
        return [member.rpartition(" ")[2] for member in members]

    async def count(self, agents: Sequence[str]) -> list[int]:
        """One command for each agent."""
        counts: list[int] = []
        for agent in agents:
            shard = _place(agent)
            command = pack("ZCARD", keys.queue(shard, agent)[0])
            counts.append(await self._nodes.query(shard, command, as_int))
        return counts


def _place(agent: str) -> Shard:
    kind, _, name = agent.partition(":")
    return shard_of(name) if kind == "thread" and name else derive_shard("agent", agent)
