"""The service: the one entry point for A2A, ``/v1``, channels and the command line (CMD-27).

``execute`` carries out a command, ``read`` answers a query from stored state, ``answer`` waits for the answer of a
turn, ``follow`` returns its frames. Protocol bindings only translate. The registry (filled by ``gateway/handlers.py``)
maps commands to handlers; messages are submitted in ``messages.py``.
"""

from __future__ import annotations

from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING

from passerelle.core.commands import SubmitTurn, TurnAccepted
from passerelle.core.frozen import frozen

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable

    from passerelle.a2a_mapping.resume import ResumeRequest
    from passerelle.channels.stream_ends import StreamEnd
    from passerelle.channels.stream_frame import FollowedStream
    from passerelle.channels.task_follower import TaskFollower
    from passerelle.control.handlers import Handlers
    from passerelle.control.messages import Messages
    from passerelle.core.commands import Command, OtherCommand, Query, Result
    from passerelle.core.principal import Principal
    from passerelle.core.wire.json import JsonObject
    from passerelle.delegation.runs.active_runs import Commands, ResultCallback
    from passerelle.delegation.runs.answers import Answers, OpenTurn
    from passerelle.permission_bridge.governing.command_gate import CommandGate
    from passerelle.runtime.records.ownership import Ownership


@frozen
class Service:
    """The entry point. ``commands`` completes every command, even if its caller disconnects."""

    messages: Messages
    handlers: Handlers
    governing: CommandGate
    answers: Answers
    following: TaskFollower
    ownership: Ownership
    commands: Commands

    def execute(
        self, principal: Principal, command: Command, idem: str | None
    ) -> Awaitable[Result]:
        """Carries out a command, once per idempotency key and principal (CMD-30), even if its caller disconnects."""
        if isinstance(command, SubmitTurn):
            return self.commands.open_run(self.messages.submit(principal, command, idem))
        return self.commands.see_through(self._execute(principal, command, idem))

    def begin(
        self, principal: Principal, command: SubmitTurn, told: ResultCallback[OpenTurn]
    ) -> None:
        """The same for a message without a key, for a caller that is notified instead of waiting."""
        self.commands.begin(self.messages.open(principal, command), told)

    async def _execute(
        self, principal: Principal, command: OtherCommand, idem: str | None
    ) -> Result:
        await self.governing.govern(principal, command)
        return await self.handlers.execute(principal, command, idem)

    async def read(self, principal: Principal, query: Query) -> JsonObject:
        """Answers a query from stored state; an agent is asked for nothing but its card."""
        return await self.handlers.read(principal, query)

    async def answer(
        self, principal: Principal, accepted: TurnAccepted, *, at_once: bool = False
    ) -> JsonObject:
        """Waits for the answer of a turn of the caller: ``{"task": …}`` or ``{"message": …}`` in A2A form.

        Raises:
            NotFound: the task was transferred to another owner meanwhile.
            PeerUnavailable, PeerRefused, InvalidAgentResponse: there is no answer and never will be.
        """
        return await self.answers.wait(accepted, principal.key, at_once=at_once)

    @asynccontextmanager
    async def follow(
        self,
        principal: Principal,
        target: TurnAccepted | str,
        *,
        agent: str | None = None,
        wish: ResumeRequest | None = None,
        until: StreamEnd | None = None,
        sends: bool = False,
    ) -> AsyncGenerator[FollowedStream]:
        """The frames of a turn from its beginning, or of a task (a facade id): the Task first, then later frames.

        ``wish`` resumes after a cursor; it is read once the task is known to be the caller's. ``until`` ends the stream
        before the task ends. A reader of a task that ``sends`` a message next adds its turn to ``awaits``, and gets the
        Task with that message in it; if its message was accepted before, the target is that turn.

        Raises:
            NotFound: no task of the caller.
            UnsupportedOperation: the task has ended.
            PeerRefused, InvalidAgentResponse: the agent did not accept the earlier message.
        """
        async with AsyncExitStack() as stack:
            if isinstance(target, str):
                opening = self._follow_task(stack, principal, target, agent, wish, until, sends)
                yield await opening
            elif sends:
                yield await self.following.follow_repeat(stack, target, principal.key, until)
            else:
                yield await self.following.follow_turn(stack, target, principal.key, until)

    async def _follow_task(
        self,
        stack: AsyncExitStack,
        principal: Principal,
        facade: str,
        agent: str | None,
        wish: ResumeRequest | None,
        until: StreamEnd | None,
        sends: bool,  # noqa: FBT001  of one caller
    ) -> FollowedStream:
        # A separate method, so that the record is released: the body of ``follow`` lives as long as its reader.
        owned = await self.ownership.find(principal, facade, agent)
        return await self.following.follow_task(stack, owned, facade, wish, until, sends=sends)
