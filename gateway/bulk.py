"""Builds the parts that change many tasks at once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from passerelle.control.bulk import BulkChanges
from passerelle.control.subtrees import Subtrees
from passerelle.core.task.bulk import ChangeTasks
from passerelle.core.task.requests import PauseTask, ResumeTask, RetryTask

if TYPE_CHECKING:
    from collections.abc import Callable

    from passerelle.control.handlers import Handlers
    from passerelle.control.task_changes import TaskChanges
    from passerelle.core.commands import OtherCommand, Result
    from passerelle.core.principal import Principal
    from passerelle.permission_bridge.governing.command_gate import CommandGate
    from passerelle.runtime.records.task_lists import TaskLists


def register_bulk(
    handlers: Handlers,
    records: TaskLists,
    governing: CommandGate,
    changes: TaskChanges,
    find_principal: Callable[[str, str], Principal | None],
) -> Subtrees:
    """Registers them. Each task goes through the handler of its own command, after the rules about commands."""

    async def execute(principal: Principal, command: OtherCommand, idem: str | None) -> Result:
        await governing.govern(principal, command)
        return await handlers.execute(principal, command, idem)

    handlers.on_command(ChangeTasks, BulkChanges(records, execute).change)
    subtrees = Subtrees(changes, find_principal, execute)
    for kind in (PauseTask, ResumeTask, RetryTask):
        handlers.commands[kind] = subtrees.over(handlers.commands[kind])
    return subtrees
