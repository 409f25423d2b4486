"""Applies one verb to many tasks: the filter is that of the list, and each task gets a command of its own.

Nothing is done unless the filter matches exactly as many tasks as the caller expects, so a task that appeared meanwhile
is noticed first. A task that refuses its command, because it has ended or a rule denies it, is listed in the answer and
stops no other.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, assert_never

from passerelle.a2a_mapping.members import objects_at, text_at
from passerelle.core.commands import CancelTask
from passerelle.core.errors import InvalidInput, PasserelleError, StoreUnavailable, WriteConflict
from passerelle.core.frozen import frozen
from passerelle.core.ids import parse_facade
from passerelle.core.task.bulk import MOST_TASKS, TaskFilter, TasksChanged
from passerelle.core.task.requests import (
    PAGE_LIMIT,
    ListRecords,
    PauseTask,
    ResumeTask,
    RetryTask,
    UnchangedTask,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from passerelle.core.commands import OtherCommand, Result
    from passerelle.core.principal import Principal
    from passerelle.core.task.bulk import BulkVerb, ChangeTasks
    from passerelle.runtime.records.task_lists import TaskLists

_AT_ONCE: Final = 8
_ASKED: Final = "many tasks are retried at once"


@frozen
class BulkChanges:
    """Carries out bulk changes. ``execute`` runs a command for one task, with all policy checks."""

    records: TaskLists
    execute: Callable[[Principal, OtherCommand, str | None], Awaitable[Result]]

    async def change(
        self, principal: Principal, command: ChangeTasks, idem: str | None
    ) -> TasksChanged:
        """Applies the verb to each matching task, once per task and idempotency key.

        Raises:
            WriteConflict: the number of matching tasks differs from the expected one; nothing is done.
            InvalidInput: an invalid filter, or ``taskIds`` combined with other members.
            NotFound: a session that is not the caller's.
        """
        found = await self._find(principal, command)
        if len(found) != command.expect:
            actual = f"more than {MOST_TASKS}" if len(found) > MOST_TASKS else str(len(found))
            raise WriteConflict(
                f"the filter matches {actual} tasks, and {command.expect} are expected",
                expected=command.expect,
                actual=len(found),
            )
        room = asyncio.Semaphore(_AT_ONCE)

        async def change_one(task: str) -> UnchangedTask | None:
            async with room:
                return await self._change_one(principal, command, task, idem)

        results = await asyncio.gather(*map(change_one, found))
        unchanged = tuple(one for one in results if one is not None)
        return TasksChanged(command.verb, len(found), len(found) - len(unchanged), unchanged)

    async def _find(self, principal: Principal, command: ChangeTasks) -> list[str]:
        wanted, found, token = command.filter, dict[str, None](), ""
        if wanted.task_ids is not None:
            if wanted != TaskFilter(task_ids=wanted.task_ids):
                raise InvalidInput(
                    "filter.taskIds", "cannot be combined with other members of a filter"
                )
            return list(dict.fromkeys(wanted.task_ids))
        while len(found) <= MOST_TASKS:
            page = await self.records.list_tasks(
                principal,
                ListRecords(
                    status=wanted.status,
                    visibility=wanted.visibility,
                    agent=wanted.agent,
                    session_id=wanted.session_id,
                    context_id=wanted.context_id,
                    since=wanted.since,
                    until=wanted.until,
                    text=wanted.text,
                    page_size=PAGE_LIMIT,
                    page_token=token or None,
                ),
            )
            found.update(dict.fromkeys(text_at(one, "taskId") for one in objects_at(page, "tasks")))
            token = text_at(page, "nextPageToken")
            if not token:
                break
        return list(found)

    async def _change_one(
        self, principal: Principal, command: ChangeTasks, task: str, idem: str | None
    ) -> UnchangedTask | None:
        if parse_facade(task) is None:
            error = InvalidInput("taskIds", f"{task!r} is not a task id")
            return UnchangedTask(task, error.stable_code, error.message)
        try:
            await self.execute(principal, _name_command(command.verb, task, command.reason), idem)
        except StoreUnavailable:
            raise
        except PasserelleError as error:
            return UnchangedTask(task, error.stable_code, error.message)
        return None


def _name_command(verb: BulkVerb, task: str, reason: str | None) -> OtherCommand:
    match verb:
        case "cancel":
            return CancelTask(task, reason=reason)
        case "pause":
            return PauseTask(task, reason=reason)
        case "resume":
            return ResumeTask(task, reason=reason)
        case "retry":
            # The task's next attempt may have another facade id; the base id keeps a repeat on the same task.
            parsed = parse_facade(task)
            return RetryTask(parsed[0] if parsed else task, reason or _ASKED)
        case _:
            assert_never(verb)
