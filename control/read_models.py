"""Reads models for their owners: sessions, threads, tasks, links and permissions.

Models are built from stored snapshots and bounded pages of the stream, never from a whole history. The head of the
stream is read before the records, so a model contains everything up to its sequence, and a reader that follows from
there misses no event.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, assert_never

from passerelle.a2a_mapping.rpc import Method
from passerelle.channels.admission import name_channel
from passerelle.channels.link_record import is_of_owner, split_ack, split_tab
from passerelle.channels.views import read_task
from passerelle.control.subagents import load_threads, read_summary
from passerelle.control.task_reads import read_source
from passerelle.core.approval.record import ActionRecord
from passerelle.core.commands import GetSession, GetSessionTasks, GetTaskModel, GetThread
from passerelle.core.errors import NotFound
from passerelle.core.events import decode_event
from passerelle.core.frozen import frozen
from passerelle.core.ids import parse_facade, read_shard
from passerelle.core.ports.log import Head, StreamKind, StreamRef
from passerelle.core.read_models.artifacts import ArtifactSummary, list_artifacts
from passerelle.core.read_models.attempts import list_attempts
from passerelle.core.read_models.channels import DeviceLink, show_channels
from passerelle.core.read_models.delivery import show_delivery
from passerelle.core.read_models.explanation import Explanation, explain_task
from passerelle.core.read_models.history import show_context, show_history
from passerelle.core.read_models.lineage import link_sources, link_thread
from passerelle.core.read_models.mark import unavailable
from passerelle.core.read_models.permissions import PermissionState, show_permissions
from passerelle.core.read_models.routing import RoutingSummary, show_routing
from passerelle.core.read_models.session import show_session
from passerelle.core.read_models.task import TaskObjects, show_objects, show_task
from passerelle.core.read_models.tasks import draw_graph, show_tasks
from passerelle.core.read_models.thread import show_thread
from passerelle.core.session.machine import SessionRecord
from passerelle.core.session.thread import ThreadRecord
from passerelle.core.task.record import TaskRecord
from passerelle.core.wire.codec import to_wire
from passerelle.core.wire.times import format_ms
from passerelle.protocol.cursor import Cursor
from passerelle.runtime.common.calls import require_operation
from passerelle.runtime.records.open_questions import load_questions
from passerelle.runtime.records.ownership import (
    find_hidden,
    find_own,
    hide_unread,
    load_own,
    may_read,
)
from passerelle.runtime.records.starting_tasks import load_waiting

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from passerelle.core.events import Event
    from passerelle.core.policy.requests import GetPermissions
    from passerelle.core.ports.chance import Clock
    from passerelle.core.ports.channels import Acked, Acks, Channels
    from passerelle.core.ports.queues import QueueStore
    from passerelle.core.principal import Principal
    from passerelle.core.session.device_requests import GetChannels
    from passerelle.core.wire.json import JsonObject
    from passerelle.permission_bridge.answers.grants import GrantService
    from passerelle.permission_bridge.rules import Policy
    from passerelle.runtime.records.contents import Contents
    from passerelle.runtime.records.ownership import Owned, Ownership
    from passerelle.runtime.records.writes import Writes
    from passerelle.webhooks.receivers import Receivers
    from passerelle.webhooks.stream_webhooks import StreamWebhooks

LISTED_TASKS: Final = 500
"""Tasks of a session that are read, in addition to the open ones."""
LOOKED_AT: Final = 4_096
"""Events of a task that are read: a third from its start, two thirds from its end."""
_PAGE: Final = 256


@frozen
class Facts:
    """The events of a task; ``skipped`` describes those that were not read."""

    events: tuple[Event, ...]
    skipped: str | None = None


@frozen
class Models:
    """Reads models in wire form; an unknown id and another principal's look the same (``NotFound``)."""

    writes: Writes
    ownership: Ownership
    clock: Clock
    receivers: Receivers
    contents: Contents
    queues: QueueStore

    async def read_session(self, principal: Principal, query: GetSession) -> JsonObject:
        """A session with its threads and its last events."""
        session, head, _ = await self.find_session(principal, query.session_id)
        stream = _stream(session.session_id)
        last = head.sequence if query.before is None else min(head.sequence, query.before - 1)
        wanted = max(1, query.after + 1, last - query.limit + 1)
        entries = await self.writes.log.read_page(stream, wanted - 1, max(0, last - wanted + 1))
        events = [decode_event(entry.data) for entry in entries if entry.sequence <= last]
        tasks = (event.fact.scope.task_id for event in events)
        hidden = await find_hidden(self.writes, principal, tasks)
        events = [event for event in events if event.fact.scope.task_id not in hidden]
        threads = [*(await self.writes.read_all(ThreadRecord, session.threads)).values()]
        model = show_session(
            session,
            threads,
            show_history(
                events,
                wanted,
                last,
                head.first,
                await self._find_rolled_back(threads, events),
                after=query.after,
            ),
            str(Cursor(head.epoch, head.sequence, head.chain)),
            await self.writes.log.read_open(session.session_id),
        )
        return to_wire(model)

    async def _find_rolled_back(
        self, threads: Sequence[ThreadRecord], events: Sequence[Event]
    ) -> frozenset[str]:
        """Tasks of these events that were rolled back; most threads have none."""
        back = {one.thread_id: one.rolled_back.at for one in threads if one.rolled_back}
        named: dict[str, None] = {}
        for event in events:
            scope = event.fact.scope
            if scope.task_id and event.sequence < back.get(scope.thread_id or "", 0):
                named[scope.task_id] = None
        tasks = await self.writes.read_all(TaskRecord, named)
        return frozenset(name for name, one in tasks.items() if one.rolled_back is not None)

    async def read_tasks(self, principal: Principal, query: GetSessionTasks) -> JsonObject:
        """The tasks of a session."""
        session, head, archive = await self.find_session(principal, query.session_id)
        tasks, left_out = await self.load_tasks(principal, session.session_id)
        threads = await load_threads(self.writes, tasks)
        questions = await load_questions(self.writes, tasks)
        now_ms, name = self.clock.now_ms(), session.session_id
        return to_wire(
            show_tasks(name, head.sequence, tasks, now_ms, left_out, archive, threads, questions)
        )

    async def load_session(
        self, principal: Principal, session_id: str
    ) -> tuple[SessionRecord, Head, list[TaskRecord], int]:
        """A session of the caller, its head read before, its tasks, and the number of older ones.

        Raises:
            NotFound: unknown, or another principal's: the two look the same.
        """
        session, head, _ = await self.find_session(principal, session_id)
        tasks, left_out = await self.load_tasks(principal, session.session_id)
        return session, head, tasks, left_out

    async def read_thread(self, principal: Principal, query: GetThread) -> JsonObject:
        """A thread with its tasks."""
        thread_id = query.thread_id
        thread = await find_own(self.writes, ThreadRecord, principal, thread_id)
        _, head, archive = await self.find_session(principal, thread.session_id)
        tasks, left_out = await self.load_tasks(principal, thread.session_id)
        names = await self.queues.list_waiting(f"thread:{thread_id}")
        waiting = hide_unread(principal, await load_waiting(self.writes, names))
        mine = [task for task in tasks if task.thread_id == thread_id]
        questions = await load_questions(self.writes, mine)
        now_ms = self.clock.now_ms()
        return to_wire(
            show_thread(thread, tasks, head.sequence, now_ms, left_out, archive, waiting, questions)
        )

    async def read_task(self, principal: Principal, query: GetTaskModel) -> JsonObject:
        """One model of a task."""
        owned = await self.ownership.find(principal, query.task, None, hidden=True)
        task, now_ms = owned.record, self.clock.now_ms()
        require_operation(principal, task.kind, Method.GET_TASK)
        match query.model:
            case "summary":
                whole = await self._complete(task)
                return to_wire(show_task(whole, now_ms, owned.held.archive))
            case "attempts":
                return to_wire(list_attempts(task, now_ms))
            case "graph":
                linked = link_thread(await read_source(self.writes, self.writes.log, task))
                return to_wire(draw_graph([linked], await load_threads(self.writes, [task])))
            case "delivery":
                return await self._read_delivery(owned)
            case "subagents":
                return await read_summary(self, principal, task)
            case "context":
                return to_wire(show_context(task))
            case "artifacts" | "routing" | "objects" | "explain":
                return await self._read_with_facts(owned, query, now_ms)
            case _:
                assert_never(query.model)

    async def _complete(self, task: TaskRecord) -> TaskRecord:
        """The task with all of its artifacts, and the task that it continues."""
        return await read_source(
            self.writes, self.writes.log, await self.contents.name_artifacts(task)
        )

    async def _read_delivery(self, owned: Owned) -> JsonObject:
        task, parent = owned.record, None
        if task.parent_task_id is not None:
            parent = await self.writes.read(TaskRecord, task.parent_task_id)
        receivers = await self.receivers.find(task, owned.held.fields)
        return to_wire(show_delivery(task, receivers, parent))

    async def _read_with_facts(self, owned: Owned, query: GetTaskModel, now_ms: int) -> JsonObject:
        task = owned.record
        facts = await self._read_facts(task)
        model: ArtifactSummary | RoutingSummary | TaskObjects | Explanation
        match query.model:
            case "artifacts":
                model = list_artifacts(await self.contents.name_artifacts(task), facts.events)
            case "routing":
                model = show_routing(task, facts.events)
            case "objects":
                whole = await self._complete(task)
                model = show_objects(whole, facts.events, now_ms, owned.held.archive)
            case _:
                questions = await load_questions(self.writes, [task])
                model = explain_task(task, facts.events, now_ms, questions)
        if facts.skipped is not None:
            model.marks["facts"] = unavailable(facts.skipped)
        return to_wire(model)

    async def explain_routing(self, task: TaskRecord) -> list[str]:
        """Why a task was routed to its agent: a sentence for each fact that is still in the stream."""
        facts = await self._read_facts(task)
        return [one.text for one in explain_task(task, facts.events, self.clock.now_ms()).agent]

    async def find_session(
        self, principal: Principal, session_id: str
    ) -> tuple[SessionRecord, Head, str | None]:
        """Record and head of a session, and its archive ref if it has left memory.

        Raises:
            NotFound: unknown, or another principal's: the two look the same.
        """
        # The head comes first, so that the record contains everything up to it.
        known = read_shard(session_id) is not None
        head = await self.writes.log.read_head(_stream(session_id)) if known else None
        if head is None:
            raise NotFound("session", session_id)
        record, held = await load_own(self.writes, SessionRecord, principal, session_id)
        return record, head, held.archive

    async def load_tasks(
        self, principal: Principal, session_id: str
    ) -> tuple[list[TaskRecord], int]:
        """The newest visible tasks of a session, all open ones, and the number of older ones."""
        listed = await self.writes.log.read_session_tasks(session_id)
        names = [facade for facade, _ in listed[:LISTED_TASKS]]
        names += await self.writes.log.read_open(session_id)
        parsed = (parse_facade(name) for name in names)
        tasks = await self.writes.read_all(TaskRecord, (one[0] for one in parsed if one))
        found = [one for one in tasks.values() if may_read(principal, one)]
        return link_sources(found), max(0, len(listed) - LISTED_TASKS)

    async def _read_facts(self, task: TaskRecord) -> Facts:
        total = task.last - task.first + 1
        if total <= LOOKED_AT:
            events = await self._read_range(task, task.first, task.last)
            gone = events[0].sequence if events else task.last + 1
            if gone > task.first:
                return Facts(tuple(events), f"events before {gone} are not in the stream any more")
            return Facts(tuple(events))
        head, tail = task.first + LOOKED_AT // 3, task.last - LOOKED_AT * 2 // 3
        events = await self._read_range(task, task.first, head)
        events += await self._read_range(task, tail, task.last)
        return Facts(tuple(events), f"events {head + 1} to {tail - 1} were not read")

    async def _read_range(self, task: TaskRecord, first: int, last: int) -> list[Event]:
        found: list[Event] = []
        after = first - 1
        while after < last:
            entries = await self.writes.log.read_page(
                _stream(task.session_id), after, min(_PAGE, last - after)
            )
            if not entries:
                break
            found += [
                decode_event(entry.data)
                for entry in entries
                if entry.sequence <= last and read_task(entry.data) == task.task_id
            ]
            after = entries[-1].sequence
        return found


def _stream(session_id: str) -> StreamRef:
    return StreamRef(StreamKind.SESSION, session_id)


_LOOKED_AT: Final = 200
"""Maximum number of devices, and of requests, that are read."""


@frozen
class ChannelSummaries:
    """Reads the stored links of a session: acks of devices, runs of agents, requests being delivered (SNAP-13)."""

    models: Models
    writes: Writes
    acks: Acks
    channels: Channels
    webhooks: StreamWebhooks

    async def read(self, principal: Principal, query: GetChannels) -> JsonObject:
        """The summary of one session.

        Raises:
            NotFound: unknown, or another principal's: the two look the same.
        """
        session, head, tasks, left_out = await self.models.load_session(principal, query.session_id)
        acks = await self.acks.list_acks(StreamRef(StreamKind.SESSION, session.session_id))
        acked = [one for one in acks if is_of_owner(one.device)][:_LOOKED_AT]
        devices = await asyncio.gather(*(self._describe(principal, one) for one in acked))
        actions = await self._load_actions(tasks)
        return to_wire(
            show_channels(
                session.session_id,
                head.sequence,
                devices,
                tasks,
                actions,
                left_out,
                await self.webhooks.list_links(session.session_id, principal.key),
            )
        )

    async def _describe(self, principal: Principal, acked: Acked) -> DeviceLink:
        name, stream = split_ack(acked.device)
        device, tab = split_tab(name)
        channel = name_channel(principal, name)
        cursor = acked.cursor
        return DeviceLink(
            channel_id=channel,
            device=device,
            tab=tab,
            generation=acked.generation,
            seen_at=format_ms(acked.seen_ms),
            connected=await self.channels.is_live(channel),
            cursor=cursor,
            acknowledged=int(cursor.split(".")[1]) if cursor else None,
            task=stream.removeprefix("task:") or None,
        )

    async def _load_actions(self, tasks: list[TaskRecord]) -> list[ActionRecord]:
        names = [
            name for task in tasks for name in (*task.open_actions, *task.occurrences.values())
        ]
        newest = [*dict.fromkeys(names)][-_LOOKED_AT:]
        return [*(await self.writes.read_all(ActionRecord, newest)).values()]


@frozen
class PermissionSummaries:
    """Reads the permissions of a thread, and its pending requests (SNAP-9)."""

    models: Models
    granting: GrantService
    find_rules: Callable[[], Policy]

    async def read(self, principal: Principal, query: GetPermissions) -> JsonObject:
        """The summary.

        Raises:
            NotFound: no such thread of the caller.
        """
        writes = self.granting.writes
        thread = await find_own(writes, ThreadRecord, principal, query.thread_id)
        _, head, tasks, _ = await self.models.load_session(principal, thread.session_id)
        mine = [task for task in tasks if task.thread_id == thread.thread_id]
        asked = await load_questions(writes, mine)
        actions = [one.record for one in asked.values()]
        state = await self._find_state(principal)
        return to_wire(show_permissions(thread, head.sequence, state, actions))

    async def _find_state(self, principal: Principal) -> PermissionState:
        rules, now_ms = self.find_rules(), self.granting.writes.clock.now_ms()
        grants = await self.granting.read(principal)
        live = [one for one in grants.grants if one.judge(now_ms) == "live"] if grants else []
        until = grants.bypass_until if grants and grants.bypasses(now_ms) else None
        return PermissionState(rules.mode, rules.version, len(live), until)
