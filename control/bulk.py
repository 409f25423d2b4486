"""One verb for many tasks: the filter is that of the list, and each task is told by its own command.

Nothing is done unless the filter matches as many tasks as the caller expects: what came in between is seen by somebody
first. What a task refuses, since it has ended meanwhile or a rule holds it, is in the answer, and stops no other.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, assert_never

from passerelle.a2a_mapping.members import objects_at, text_at
from passerelle.core.commands import CancelTask
from passerelle.core.errors import InvalidInput, PasserelleError, StoreUnavailable, WriteConflict
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
_ASKED: Final = "many tasks are tried again at once"


@dataclass(frozen=True, slots=True)
class BulkChanges:
    """Carries them out. ``execute`` is what the command for one task goes through, with everything that judges it."""

    records: TaskLists
    execute: Callable[[Principal, OtherCommand, str | None], Awaitable[Result]]

    async def change(
        self, principal: Principal, command: ChangeTasks, idem: str | None
    ) -> TasksChanged:
        """Does the verb with each task that matches, with each of them once for an idempotency key.

        Raises:
            WriteConflict: another number of tasks matches than is expected; nothing is done.
            InvalidInput: a member of the filter that is none, or ``taskIds`` beside others.
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

        async def tell(task: str) -> UnchangedTask | None:
            async with room:
                return await self._tell(principal, command, task, idem)

        told = await asyncio.gather(*map(tell, found))
        unchanged = tuple(one for one in told if one is not None)
        return TasksChanged(command.verb, len(found), len(found) - len(unchanged), unchanged)

    async def _find(self, principal: Principal, command: ChangeTasks) -> list[str]:
        wanted, found, token = command.filter, dict[str, None](), ""
        if wanted.task_ids is not None:
            if wanted != TaskFilter(task_ids=wanted.task_ids):
                raise InvalidInput("filter.taskIds", "goes with no other member of a filter")
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

    async def _tell(
        self, principal: Principal, command: ChangeTasks, task: str, idem: str | None
    ) -> UnchangedTask | None:
        if parse_facade(task) is None:
            error = InvalidInput("taskIds", f"{task!r} is no id of a task")
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
            # It is another name of the task that shows its next attempt, and a repeat has to come to the same one.
            parsed = parse_facade(task)
            return RetryTask(parsed[0] if parsed else task, reason or _ASKED)
        case _:
            assert_never(verb)
