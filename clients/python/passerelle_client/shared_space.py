"""Keys of the tasks that an agent's replicas share: shards, keys, and owners as digests."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from passerelle.core.ids import SHARDS, Shard


@dataclass(frozen=True, slots=True)
class TaskKeys:
    """The keys of one task. They share a hash slot."""

    shard: Shard
    task: str
    events: str
    hints: str


@dataclass(frozen=True, slots=True)
class SharedSpace:
    """The tasks of one agent. ``name`` separates agents on one server."""

    name: str

    def locate(self, task_id: str) -> TaskKeys:
        """Returns the keys of a task."""
        shard = _choose_shard(f"{self.name}:{task_id}")
        return TaskKeys(
            shard,
            shared_task(shard, self.name, task_id),
            shared_events(shard, self.name, task_id),
            shared_hints(shard, self.name, task_id),
        )

    def locate_list(self, owner: str) -> tuple[Shard, str]:
        """Returns shard and key of an owner's list."""
        digest = self.digest(owner)
        shard = _choose_shard(digest)
        return shard, shared_index(shard, self.name, digest)

    def digest(self, owner: str) -> str:
        """Returns the digest that is stored in place of an owner, since an owner may be a person."""
        return hashlib.sha256(f"{self.name}\n{owner}".encode()).hexdigest()[:32]


def _choose_shard(text: str) -> Shard:
    return Shard(hashlib.sha1(text.encode(), usedforsecurity=False).digest()[0] % SHARDS)


def shared_task(shard: Shard, space: str, task: str) -> str:
    """HASH v, o, d (the task), end, ops, last, cut, c, st, ts: a task that an agent's replicas share."""
    return f"{{{shard.tag}}}:kt:{space}:{task}"


def shared_events(shard: Shard, space: str, task: str) -> str:
    """STREAM with ids ``<version>-0``: d, the event that made the version. Expires after the task ends."""
    return f"{{{shard.tag}}}:ke:{space}:{task}"


def shared_hints(shard: Shard, space: str, task: str) -> str:
    """Hint channel of a shared task: its new version, 0 once it is deleted."""
    return f"{{{shard.tag}}}:h:k:{space}:{task}"


def shared_index(shard: Shard, space: str, owner: str) -> str:
    """ZSET shared task -> last status time in microseconds, of one owner."""
    return f"{{{shard.tag}}}:ki:{space}:{owner}"
