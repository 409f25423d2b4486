"""Reads single tasks: the A2A Task, the stored record, and the earlier task that it continues (LT-13)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from passerelle.a2a_mapping.history import cut_history
from passerelle.a2a_mapping.resume import mark
from passerelle.a2a_mapping.rpc import Method
from passerelle.core.agent_name import ROUTER
from passerelle.core.errors import NotFound
from passerelle.core.events import show_unsequenced
from passerelle.core.frozen import frozen
from passerelle.core.ids import parse_facade
from passerelle.core.read_models.blockers import find_blockers
from passerelle.core.read_models.lineage import find_source, has_implicit_source, link_source
from passerelle.core.read_models.spending import MOST_TASKS, TaskSpending, sum_spending
from passerelle.core.read_models.task import show_record
from passerelle.core.session.archived import make_archived_event
from passerelle.core.task.record import TaskRecord
from passerelle.core.wire.codec import to_wire
from passerelle.delegation.runs.same_work import read_fingerprint
from passerelle.runtime.common.calls import require_operation
from passerelle.runtime.records.family import list_below
from passerelle.runtime.records.long_content import LongContent, LongTaskError, Shape
from passerelle.runtime.records.open_questions import load_questions

if TYPE_CHECKING:
    from passerelle.channels.task_follower import TaskFollower
    from passerelle.control.read_models import Models
    from passerelle.core.commands import GetRecord, GetTask
    from passerelle.core.ports.log import EventLog
    from passerelle.core.principal import Principal
    from passerelle.core.wire.json import JsonObject
    from passerelle.runtime.records.contents import Contents
    from passerelle.runtime.records.ownership import Ownership
    from passerelle.runtime.records.writes import Writes


@frozen
class TaskReads:
    """Reads tasks. An agent is never asked."""

    ownership: Ownership
    contents: Contents
    following: TaskFollower
    runtime_id: str
    models: Models

    async def read(self, principal: Principal, query: GetTask) -> JsonObject:
        """The Task as its callers see it.

        Raises:
            NotFound: no such task of the caller.
            LongTaskError: it is large, and was asked for in pieces.
        """
        owned = await self.ownership.find(principal, query.task, query.agent)
        if query.in_pieces:
            found = await self.contents.read_slim(owned.record, owned.held.fields)
            if isinstance(found, LongContent):
                is_asked_for = query.history_length is None and not query.marked
                shape = None if is_asked_for else await self._shape(owned.record, query)
                raise LongTaskError(found, shape)
            task = found
        else:
            task = await self.contents.read_task(owned.record, owned.held.fields)
        if task is None:
            raise NotFound("task", query.task)
        cut = cut_history(task, query.history_length)
        if not query.marked:
            return cut
        return mark(cut, owned.record.generation, str(await self.following.locate(owned.record)))

    async def _shape(self, record: TaskRecord, query: GetTask) -> Shape:
        """The function that turns a whole Task into the form that a query asks for."""
        cursor = str(await self.following.locate(record)) if query.marked else None

        def shape(task: JsonObject) -> JsonObject:
            cut = cut_history(task, query.history_length)
            return cut if cursor is None else mark(cut, record.generation, cursor)

        return shape

    async def read_record(self, principal: Principal, query: GetRecord) -> JsonObject:
        """The record of a task with its version; for an archived one also its ref and the fact of that (TEV-17).

        ``fingerprint`` is equal for tasks with the same text for the same agent, ignoring case and spaces. ``routing``
        has, for a routed task, a sentence per fact about the choice of its agent. ``spending`` has the costs of the
        task and those below it, if any; ``blockers`` what a waiting task waits for.

        Raises:
            NotFound: no such task of the caller.
        """
        owned = await self.ownership.find(principal, query.task, None, hidden=True)
        require_operation(principal, owned.record.kind, Method.GET_TASK)
        named = await self.contents.name_artifacts(owned.record)
        whole = await read_source(self.models.writes, self.models.writes.log, named)
        shown: JsonObject = {
            **to_wire(show_record(whole)),
            "version": owned.held.stamp.version,
            "fingerprint": read_fingerprint(owned.record, owned.held.fields),
        }
        if owned.record.kind == ROUTER:
            shown["routing"] = [*await self.models.explain_routing(owned.record)]
        questions = await load_questions(self.models.writes, [owned.record])
        blockers = find_blockers(owned.record, questions)
        if blockers:
            shown["blockers"] = [to_wire(one) for one in blockers]
        spent = await self._add_up(owned.record)
        if spent is not None:
            shown["spending"] = to_wire(spent)
        ref = owned.held.archive
        if ref is None:
            return shown
        archived = make_archived_event(owned.record, ref, self.runtime_id)
        return {**shown, "archive": ref, "archived": show_unsequenced(archived)}

    async def _add_up(self, record: TaskRecord) -> TaskSpending | None:
        """The costs of the task and those below it, archived ones included; None if there are none.

        A reader of a task gets the sums over its subtree, even without the right to read each of those tasks.
        """
        has_children = any(edge.kind == "child" for edge in record.relationships)
        writes, below = self.models.writes, list[TaskRecord]()
        if has_children:
            found = await list_below(writes, record.owner, record, most=MOST_TASKS)
            below = [one.record for one in found]
        tree = sum_spending([record, *below[:MOST_TASKS]])
        if not tree.attempts:
            return None
        return TaskSpending(sum_spending([record]), tree, partial=len(below) > MOST_TASKS)


_LOOKED_AT: Final = 128
"""Earlier tasks of a session searched for the source, newest first."""
_CHUNK: Final = 8


async def read_source(writes: Writes, log: EventLog, task: TaskRecord) -> TaskRecord:
    """The task with its source. Nothing is read if no message led to it, or if the message names the source."""
    if not has_implicit_source(task):
        return task
    parsed = [parse_facade(facade) for facade, _ in await log.read_session_tasks(task.session_id)]
    names = sorted({one[0] for one in parsed if one and one[0] < task.task_id}, reverse=True)
    for first in range(0, min(len(names), _LOOKED_AT), _CHUNK):
        records = await writes.read_all(TaskRecord, names[first : first + _CHUNK])
        source = find_source(task, [*records.values()])
        if source is not None:
            return link_source(task, source)
    return task
