"""Edges between tasks, and from tasks to other things: stored at both ends, and kept once removed (CMD-13, GR-10).

A task is *blocked* by an edge from a task that has not completed, and resumes when it has, or when the edge is removed.
Tasks of one caller may be in different shards, so the two ends are two appends. The first one sets a due row for the
second (I9): it is written at once, or by that row after a failure. An edge has a unique name and is not created twice.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Final, cast

from passerelle.control.task_changes import make_attempt_rows
from passerelle.control.task_graph import check_width
from passerelle.core.batch import EntityKind, EntityRef
from passerelle.core.errors import GraphLimit, InvalidInput, NotFound, UnsupportedOperation
from passerelle.core.facts import EdgeKind
from passerelle.core.frozen import frozen
from passerelle.core.ids import read_shard
from passerelle.core.payloads.task import TaskDependencyUpdated
from passerelle.core.task import commands as tell
from passerelle.core.task import machine as tasks
from passerelle.core.task.record import TaskRecord
from passerelle.core.task.requests import LinkTasks, UnlinkTasks
from passerelle.core.task.status import ENDED, Status
from passerelle.core.wire.record import change
from passerelle.core.wire.times import format_ms
from passerelle.delegation.runs.remarks import show_wait
from passerelle.runtime.records.writes import AppendOptions

if TYPE_CHECKING:
    from passerelle.control.task_changes import TaskChanges
    from passerelle.control.task_graph import GraphBounds
    from passerelle.core.decision import Decision
    from passerelle.core.events import Fact
    from passerelle.core.ports.due import DropRow, DueRow
    from passerelle.core.principal import Principal
    from passerelle.core.task.record import Edge
    from passerelle.core.task.requests import TaskChanged

EDGE: Final = "edge"
"""Kind of the due row of an edge whose other end must be written."""
UNBLOCK: Final = "unblock"
"""Kind of the due row of an ended task that others wait for."""
_FAR_ENDS: Final[dict[EdgeKind, EdgeKind]] = {
    "parent": "child",
    "child": "parent",
    "blocks": "blocked_by",
    "blocked_by": "blocks",
}
_TO_TASKS: Final = frozenset({*_FAR_ENDS, "source_task"})


@frozen
class Linking:
    """Creates and removes edges."""

    changes: TaskChanges
    graph: GraphBounds

    async def link(self, principal: Principal, command: LinkTasks, idem: str | None) -> TaskChanged:
        """Creates an edge.

        Raises:
            NotFound: a task that is not the caller's, at either end.
            InvalidInput: an edge from a task to itself.
            GraphLimit: it would close a cycle, make the tree too deep, or exceed the number of edges.
        """
        near, far = await self._find_ends(principal, command)
        status, waits_for = "open", None
        if far is not None:
            command = replace(command, target=far.task_id)
            if _is_new(near, command):
                await self._check(near, far, command.kind)
            waits_for = {"blocks": near, "blocked_by": far}.get(command.kind)
            if waits_for is not None and waits_for.status is Status.COMPLETED:
                status = "satisfied"
        changed = await self._change(principal, command, idem, _edge(command, status), near, far)
        if far is not None and status == "open" and not changed.repeated:
            await self._check_again(near, far, command)
            if waits_for is not None and waits_for.status in ENDED:
                await self._report_end(waits_for, near.task_id if waits_for is far else far.task_id)
        return changed

    async def _check(self, near: TaskRecord, far: TaskRecord, kind: EdgeKind) -> None:
        await self.graph.check(near, far, kind)
        check_width(near, kind, "target")
        if kind in _FAR_ENDS:
            check_width(far, _FAR_ENDS[kind], "target")

    async def _check_again(self, near: TaskRecord, far: TaskRecord, command: LinkTasks) -> None:
        """Checks again: a concurrent edge may have been created, and the two together may violate a limit."""
        try:
            await self.graph.check(near, far, command.kind)
        except GraphLimit as refusal:
            undone = _edge(UnlinkTasks(command.task_id, command.kind, command.target), "removed")
            undone = replace(undone, reason=refusal.reason)
            await self._write_edge(near, undone)
            if command.kind in _FAR_ENDS:
                await self._write_edge(far, _mirror(near.task_id, undone))
            raise

    async def unlink(
        self, principal: Principal, command: UnlinkTasks, idem: str | None
    ) -> TaskChanged:
        """Marks an edge as removed, at both ends.

        Raises:
            NotFound: there is no such edge.
        """
        near, far = await self._find_ends(principal, command)
        if far is not None:
            command = replace(command, target=far.task_id)
        edge = _edge(command, "removed")
        if _find(near, edge) is None:
            raise NotFound("edge", _name(command))
        return await self._change(principal, command, idem, edge, near, far)

    async def _change(
        self,
        principal: Principal,
        command: LinkTasks | UnlinkTasks,
        idem: str | None,
        edge: TaskDependencyUpdated,
        near: TaskRecord,
        far: TaskRecord | None,
    ) -> TaskChanged:
        """Writes the near end, and then the far one."""
        owed = None
        if far is not None and edge.kind in _FAR_ENDS:
            decide_edge(
                far, _mirror(near.task_id, edge)
            )  # if the far end refuses the edge, neither end is written
            owed = f"{EDGE}:{near.task_id}:{edge.edge_id}"
        changed = await self.changes.change(
            principal, command, idem, lambda record: decide_edge(record, edge), owed
        )
        if far is not None and owed is not None:
            await self._write_edge(far, _mirror(near.task_id, edge))
        return changed

    async def finish(self, row: DueRow, drop: DropRow) -> None:
        """``edge:<task>:<edge>``: brings the far end to the state of the near one."""
        shard = read_shard(row.entity)
        if shard is None:
            return
        near = await self._read(row.entity)
        edge = _recall(near, row.member.split(":", 2)[2]) if near else None
        far = await self._read(edge.target) if edge else None
        if near is not None and edge is not None and far is not None:
            with suppress(
                UnsupportedOperation
            ):  # the far task was archived meanwhile, and waits for nothing
                await self._write_edge(far, _mirror(near.task_id, edge))
        await drop(shard, row)

    async def _read(self, task_id: str) -> TaskRecord | None:
        return await self.changes.writes.read(TaskRecord, task_id)

    async def _find_ends(
        self, principal: Principal, command: LinkTasks | UnlinkTasks
    ) -> tuple[TaskRecord, TaskRecord | None]:
        ownership = self.changes.ownership
        near = await ownership.find(principal, command.task_id, None, hidden=True)
        if command.kind not in _TO_TASKS:
            return near.record, None
        far = await ownership.find(principal, command.target, None, hidden=True)
        if far.ref == near.ref:
            raise InvalidInput("target", "a task cannot have an edge to itself")
        return near.record, far.record

    async def _write_edge(self, record: TaskRecord, edge: TaskDependencyUpdated) -> None:
        ref = EntityRef(EntityKind.TASK, record.task_id)

        def body(decision: Decision) -> AppendOptions:
            now = decision.state(ref)
            if not isinstance(now, TaskRecord):
                return AppendOptions()
            decision.add(decide_edge(now, edge))
            return AppendOptions(due=make_attempt_rows(decision, ref, now))

        await self.changes.writes.decide(record.session_id, [ref], body)
        await self.changes.notify_driver(ref)

    async def unblock(
        self,
        row: DueRow,
        drop: DropRow,
    ) -> None:
        """``unblock:<task>``: the task has ended, and others wait for it. Only a completed one unblocks them.

        Tasks that wait for one that ended otherwise get a reason that reports it (GR-2).
        """
        shard = read_shard(row.entity)
        if shard is None:
            return
        ref = EntityRef(EntityKind.TASK, row.entity)
        record = (await self.changes.writes.load_one(ref)).record
        if not isinstance(record, TaskRecord) or record.status not in ENDED:
            await drop(shard, row)
            return
        waiting = [edge for edge in record.relationships if edge.is_waited_for]
        if not waiting or record.status is not Status.COMPLETED:
            for edge in waiting:
                await self._report_end(record, edge.target)
            await drop(shard, row)
            return
        for edge in waiting:
            await self._satisfy(record, edge.target)

        def body(decision: Decision) -> AppendOptions:
            now = decision.state(ref)
            for edge in waiting:
                satisfied = TaskDependencyUpdated(
                    edge.edge_id, "blocks", edge.target, "satisfied", edge.status
                )
                if isinstance(now, TaskRecord):
                    decision.add(decide_edge(now, satisfied))
            return AppendOptions(claim=row)

        await self.changes.writes.decide(record.session_id, [ref], body)

    async def _report_end(self, blocker: TaskRecord, target: str) -> None:
        """Reports to a blocked task that its blocker has ended without completing."""
        waiter = await self._read(target)
        if waiter is None:
            return
        ref = EntityRef(EntityKind.TASK, target)

        def body(decision: Decision) -> AppendOptions:
            now = decision.state(ref)
            if isinstance(now, TaskRecord):
                facts = decide_still_blocked(now, blocker)
                message_id = self.changes.writes.ids.mint("msg", ref.shard)
                decision.add(show_wait(now, facts, message_id, format_ms(decision.now_ms)))
            return AppendOptions()

        await self.changes.writes.decide(waiter.session_id, [ref], body)
        await self.changes.notify_driver(ref)

    async def _satisfy(self, blocker: TaskRecord, target: str) -> None:
        blocked = await self._read(target)
        if blocked is not None:
            kind: Final = "blocked_by"
            edge_id = f"{kind}:{blocker.task_id}"
            edge = TaskDependencyUpdated(
                edge_id, kind, blocker.task_id, "satisfied", reason="the task has completed"
            )
            await self._write_edge(blocked, edge)


def decide_edge(record: TaskRecord, edge: TaskDependencyUpdated) -> list[Fact]:
    """Facts for a new or changed edge, and for a task that it blocks; none if the edge is in that state already."""
    known = _find(record, edge)
    if known is not None and known.status == edge.status:
        return []
    if known is None and edge.status == "removed":
        return []
    if known is not None:
        edge = replace(edge, edge_id=known.edge_id)
    facts = tasks.decide(
        record, tell.LinkTask(replace(edge, previous=known.status if known else None))
    )
    return facts + (_follow(record, edge) if edge.kind == "blocked_by" else [])


def decide_still_blocked(record: TaskRecord, blocker: TaskRecord) -> list[Fact]:
    """Facts for a task that stays blocked by an ended task; none if it does not wait for it, or reported it already."""
    waits = any(edge.holds and edge.target == blocker.task_id for edge in record.relationships)
    if not waits or record.status is not Status.BLOCKED:
        return []
    end = f"task {blocker.task_id} ended as {blocker.status}"
    reason = f"{end}: this one waits until that one is retried and completes, or is unlinked"
    if record.status_reason == reason:
        return []
    return tasks.decide(record, tell.BlockTask(tasks.describe_blocker(blocker.task_id, reason)))


def _find(record: TaskRecord, edge: TaskDependencyUpdated) -> Edge | None:
    """The current edge. The edge to a child created as one has another id than a linked one."""
    for one in record.relationships:
        is_same = edge.kind in _FAR_ENDS and (one.kind, one.target) == (edge.kind, edge.target)
        if is_same or one.edge_id == edge.edge_id:
            return one
    return None


def _follow(record: TaskRecord, edge: TaskDependencyUpdated) -> list[Fact]:
    if edge.status == "open":
        if record.status is Status.BLOCKED or record.status not in tasks.TABLE[tell.BlockTask]:
            return []
        blocked = tasks.describe_blocker(edge.target, edge.reason)
        return tasks.decide(record, tell.BlockTask(blocked))
    others = [one for one in record.relationships if one.edge_id != edge.edge_id]
    if record.status is not Status.BLOCKED or any(one.holds for one in others):
        return []
    # Its status without this edge.
    free = change(record, relationships=tuple(others))
    return tasks.decide(
        free, tell.ContinueTask(edge.reason or f"task {edge.target} blocks no more")
    )


def _is_new(near: TaskRecord, command: LinkTasks) -> bool:
    """Whether the edge does not exist yet: an existing one was checked before."""
    known = _find(near, _edge(command, "open"))
    return known is None or known.status == "removed"


def _recall(record: TaskRecord, edge_id: str) -> TaskDependencyUpdated | None:
    """The current edge; satisfied if its blocker has completed, whether or not that is written yet."""
    names = {edge_id, edge_id.partition(":")[2]}
    known = next(
        (
            one
            for one in record.relationships
            if one.edge_id in names and edge_id in {one.edge_id, f"{one.kind}:{one.target}"}
        ),
        None,
    )
    if known is None:
        return None
    is_over = known.is_waited_for and record.status is Status.COMPLETED
    status = "satisfied" if is_over else known.status
    return TaskDependencyUpdated(
        edge_id, cast("EdgeKind", known.kind), known.target, status, reason=known.reason
    )


def _mirror(near: str, edge: TaskDependencyUpdated) -> TaskDependencyUpdated:
    """The same edge at its other end."""
    kind = _FAR_ENDS[edge.kind]
    return replace(edge, kind=kind, target=near, edge_id=f"{kind}:{near}")


def _name(command: LinkTasks | UnlinkTasks) -> str:
    return f"{command.kind}:{command.target}"


def _edge(command: LinkTasks | UnlinkTasks, status: str) -> TaskDependencyUpdated:
    return TaskDependencyUpdated(
        edge_id=_name(command),
        kind=command.kind,
        target=command.target,
        status=status,  # type: ignore[arg-type]  # one of the three
        reason=command.reason,
    )
