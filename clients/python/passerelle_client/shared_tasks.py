"""Tasks that an agent's replicas share: versions and their events, as opaque bytes.

For agents built with an SDK that keep their tasks in this store without a gateway (``tasks.py``). One script writes a
version with its event. The row in the owner's list is in another hash slot: it is written before the first version,
so that no task is missing from the list. Reading a list repairs rows that a crash left outdated.
"""

from __future__ import annotations

import secrets
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, cast

from passerelle.core.errors import StoreUnavailable
from passerelle.store.connection import pack
from passerelle.store.failures import retry
from passerelle.store.lua_script import ScriptFile, load_script

if TYPE_CHECKING:
    from passerelle.client.shared_lists import SharedLists
    from passerelle.client.shared_space import SharedSpace
    from passerelle.store.nodes import Nodes

PAGE_EVENTS: Final = 256
_SCRIPTS: Final = ("delete_shared", "save_shared")


@dataclass(frozen=True, slots=True)
class Draft:
    """The content of a task version. ``event`` caused it, if any; ``time_us`` is 0 without a status time."""

    task: bytes
    event: bytes | None = None
    context: str = ""
    state: str = ""
    time_us: int = 0
    ended: bool = False


@dataclass(frozen=True, slots=True)
class Stored:
    """A stored version of a task."""

    version: int
    task: bytes


@dataclass(frozen=True, slots=True)
class EventPage:
    """Events after a version, in order, and the state of the task, read after them.

    ``cut`` is the last version whose event was trimmed, ``last`` the last one that had an event. ``version`` is the
    task's version, 0 if there is no task.
    """

    events: list[tuple[int, bytes]]
    cut: int
    last: int
    version: int

    def holds(self, after: int) -> bool:
        """Returns whether every event behind ``after`` is stored or to come: not trimmed, expired, deleted or lost."""
        trimmed, lost = self.cut > after, self.version < max(after, 1)
        return not trimmed and not lost and (bool(self.events) or self.last <= after)


@dataclass(frozen=True, slots=True)
class SharedTasks:
    """Tasks of one space. Each task keeps ``keep_events`` events, until ``ttl_ms`` after its end."""

    nodes: Nodes
    space: SharedSpace
    lists: SharedLists
    keep_events: int
    ttl_ms: int

    async def save(
        self, task_id: str, owner: str, draft: Draft, expected: int | None
    ) -> int | None:
        """Writes a version and returns it; returns None if the task is not at version ``expected``.

        Without ``expected``, any version is followed if the task exists and has not ended. Safe to repeat: a call whose
        reply was lost is recognised by its id.

        Raises:
            StoreUnavailable: it was not written, or the outcome is unknown.
        """
        if expected == 0:
            await self.lists.place(task_id, owner, draft.time_us)
        at = self.space.locate(task_id)
        packed = _read("save_shared").pack_call(
            [at.task, at.events, at.hints],
            {
                "op": secrets.token_hex(8),
                "expected": False if expected is None else str(expected),
                "owner": self.space.digest(owner),
                "context": draft.context,
                "state": draft.state,
                "time": str(draft.time_us),
                "ended": draft.ended,
                "event": draft.event is not None,
                "keep": self.keep_events,
                "ttl": str(self.ttl_ms),
            },
            [draft.task, draft.event or b""],
        )
        reply = cast("list[bytes]", await retry(lambda: self.nodes.write(at.shard, packed)))
        if reply[0] != b"ok":
            return None
        if expected != 0 and reply[2] != str(draft.time_us).encode():
            # the version is stored even if this fails: the next read of the list moves the row
            with suppress(StoreUnavailable):
                await self.lists.place(task_id, owner, draft.time_us)
        return int(reply[1])

    async def load(self, task_id: str, owner: str) -> Stored | None:
        """Returns the task of an owner; None if it does not exist or has another owner."""
        at = self.space.locate(task_id)
        command = pack("HMGET", at.task, "o", "v", "d")
        (reply,) = await retry(lambda: self.nodes.read(at.shard, command))
        found, version, task = cast("list[bytes | None]", reply)
        if found != self.space.digest(owner).encode() or version is None or task is None:
            return None
        return Stored(int(version), task)

    async def delete(self, task_id: str, owner: str) -> bool:
        """Removes a task with its events. Returns whether it existed."""
        at = self.space.locate(task_id)
        packed = _read("delete_shared").pack_call(
            [at.task, at.events, at.hints], {"owner": self.space.digest(owner)}
        )
        gone = await retry(lambda: self.nodes.write(at.shard, packed))
        await self.lists.forget(owner, [task_id])
        return gone == 1

    async def read_events(self, task_id: str, after: int) -> EventPage:
        """Reads at most one page of events after a version."""
        at = self.space.locate(task_id)
        found, state = await retry(
            lambda: self.nodes.read(
                at.shard,
                pack("XRANGE", at.events, f"({after}-0", "+", "COUNT", PAGE_EVENTS),
                pack("HMGET", at.task, "cut", "last", "v"),
            )
        )
        cut, last, version = cast("list[bytes | None]", state)
        rows = cast("list[tuple[bytes, list[bytes]]]", found)
        return EventPage(
            [(int(entry_id.partition(b"-")[0]), fields[1]) for entry_id, fields in rows],
            int(cut or 0),
            int(last or 0),
            int(version or 0),
        )

    async def expire_events(self, task_id: str) -> None:
        """Sets the events of a task to expire after ``ttl_ms``."""
        at = self.space.locate(task_id)
        command = pack("PEXPIRE", at.events, self.ttl_ms)
        await retry(lambda: self.nodes.write(at.shard, command))


def read_scripts() -> list[bytes]:
    """Returns the text of every script, to load into a server that lacks one."""
    return [_read(name).text for name in _SCRIPTS]


def _read(name: str) -> ScriptFile:
    return load_script(__name__.rpartition(".")[0], name)
