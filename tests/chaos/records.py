"""Reads the gateways' stored data directly: every task, and the facts of a session."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from passerelle.core.batch import EntityKind
from passerelle.core.chunks import in_chunks
from passerelle.core.errors import PeerUnavailable
from passerelle.core.events import decode_event
from passerelle.core.ids import ALL_SHARDS, shard_of
from passerelle.core.machine import read_loaded
from passerelle.core.ports.log import StreamKind, StreamRef
from passerelle.core.task.record import TaskRecord
from passerelle.core.task.status import Status
from passerelle.store.store import Store, StoreSettings
from tests.support.proof import read_stream

_AT_ONCE = 200
_SHOWN = 160


@dataclass(slots=True)
class Records:
    """All tasks at one moment, by id and by the label of their errand."""

    store: Store
    tasks: dict[str, TaskRecord] = field(default_factory=dict[str, TaskRecord])
    by_label: dict[str, list[TaskRecord]] = field(
        default_factory=lambda: defaultdict[str, list[TaskRecord]](list)
    )

    async def read(self) -> None:
        """Reads them again."""
        self.tasks.clear()
        self.by_label.clear()
        refs = set(await self.store.inspection.list_entities())
        for session in await self.store.archive.list_sessions(ALL_SHARDS):
            frame = await self.store.archive.find(shard_of(session), session)
            refs |= frame.hashes.keys() if frame else set()
        wanted = [ref for ref in refs if ref.kind is EntityKind.TASK]
        for part in in_chunks(wanted, _AT_ONCE):
            for loaded in await self.store.log.load(part):
                record = read_loaded(loaded)
                if isinstance(record, TaskRecord):
                    self.tasks[record.task_id] = record
                    self.by_label[record.scope.context_id].append(record)

    def is_unsent(self, task_id: str | None) -> bool:
        """Whether a task's record states that its message was never sent: then it must not have reached the agent.

        It was cancelled while the agent was busy, or its agent was unreachable at each attempt.
        """
        record = self.tasks.get((task_id or "").partition("~")[0])
        if record is None or any(attempt.remote_task_id for attempt in record.attempts):
            return False
        return record.status is Status.CANCELLED or self.is_away(record)

    def is_away(self, record: TaskRecord) -> bool:
        """Whether a task failed because its agent was unreachable, and no message has an unknown outcome."""
        return (
            record.status is Status.FAILED
            and bool(record.attempts)
            and all(
                attempt.pending_message_id is None
                and attempt.last_error is not None
                and attempt.last_error.code == PeerUnavailable.code
                for attempt in record.attempts
            )
        )

    async def read_top(self, session: str) -> int:
        """The sequence of the last event of a session."""
        head = await self.store.log.read_head(StreamRef(StreamKind.SESSION, session))
        return 0 if head is None else head.sequence

    async def describe_facts(self, session: str) -> list[str]:
        """One line per fact of a session."""
        lines: list[str] = []
        for entry in await read_stream(self.store.log, session):
            event = decode_event(entry.data, entry.frame, entry.facade)
            payload = entry.data.partition(b'"payload":')[2][:_SHOWN].decode(errors="replace")
            lines.append(f"{entry.sequence:4} {event.timestamp} {event.type} {payload}")
        return lines


@asynccontextmanager
async def open_records(url: str, folder: Path) -> AsyncGenerator[Records]:
    """A separate store client on the same server."""
    async with await Store.open(StoreSettings(url, folder / "blobs")) as store:
        yield Records(store)
