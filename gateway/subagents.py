"""Builds the parts that handle subagents."""

from __future__ import annotations

from typing import TYPE_CHECKING

from passerelle.control.subagent_commands import Subagents
from passerelle.control.subagent_waits import SubagentWaits
from passerelle.core.frozen import frozen
from passerelle.core.subagent.requests import (
    CloseSubagent,
    ResumeSubagent,
    SendSubagentInput,
    SpawnSubagent,
    WaitSubagents,
)

if TYPE_CHECKING:
    from passerelle.control.handlers import Handlers
    from passerelle.control.messages import Messages
    from passerelle.core.commands import OtherCommand, Result, SubmitTurn, TurnAccepted
    from passerelle.core.principal import Principal
    from passerelle.gateway.dependencies import CoreServices
    from passerelle.gateway.handlers import TaskHandlers
    from passerelle.permission_bridge.governing.command_gate import CommandGate


@frozen
class SubagentHandlers:
    """Handles commands and queries about subagents."""

    commands: Subagents
    waits: SubagentWaits

    def register(self, handlers: Handlers) -> None:
        """Registers them."""
        handlers.on_command(SpawnSubagent, self.commands.spawn)
        handlers.on_command(SendSubagentInput, self.commands.send)
        handlers.on_repeatable(ResumeSubagent, self.commands.resume)
        handlers.on_repeatable(CloseSubagent, self.commands.close)
        handlers.on_query(WaitSubagents, self.waits.wait)


def make_subagents(
    services: CoreServices,
    messages: Messages,
    tasks: TaskHandlers,
    governing: CommandGate,
    handlers: Handlers,
) -> SubagentHandlers:
    """Each step is a command or a message like any other, from the caller itself, after the rules about commands."""

    async def execute(principal: Principal, command: OtherCommand, idem: str | None) -> Result:
        await governing.govern(principal, command)
        return await handlers.execute(principal, command, idem)

    async def submit(principal: Principal, command: SubmitTurn, idem: str | None) -> TurnAccepted:
        return await services.dispatch.commands.open_run(messages.submit(principal, command, idem))

    commands = Subagents(
        tasks.subagents,
        services.ownership,
        tasks.creating,
        tasks.starting,
        tasks.interrupting,
        execute,
        submit,
        services.deps.find_peer,
    )
    return SubagentHandlers(commands, SubagentWaits(tasks.subagents, services.deps.hub))
