"""The service object: the one way in behind A2A, ``/v1``, channels and the command line (CMD-27).

``execute`` carries out a command, ``read`` answers a query from what is stored, ``answer`` waits for the answer of a
turn, ``follow`` gives its frames. Edges translate and do nothing else.
"""

from __future__ import annotations

from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, assert_never

from passerelle.a2a_mapping.history import cut_history
from passerelle.a2a_mapping.resume import mark
from passerelle.a2a_mapping.rpc import Method
from passerelle.control.channel_access import ServiceAccess, ServiceSnapshots
from passerelle.core.approval.requests import GetAudit, ListMutes
from passerelle.core.commands import (
    ActionAnswered,
    CancelTask,
    DeletePushConfig,
    GetAction,
    GetOutput,
    GetPushConfig,
    GetRecord,
    GetSession,
    GetSessionTasks,
    GetTask,
    GetTaskModel,
    GetThread,
    ListActions,
    ListAgents,
    ListDeliveries,
    ListPushConfigs,
    ListTasks,
    PushConfigDeleted,
    PushConfigSet,
    RespondAction,
    RetryDelivery,
    SetPushConfig,
    SubmitTurn,
    TurnAccepted,
)
from passerelle.core.errors import Draining, NotFound
from passerelle.core.message_bounds import MessageBounds
from passerelle.core.payloads.runtime import WarningRaised
from passerelle.core.policy.requests import (
    EvaluatePermission,
    ExplainAction,
    GetActionContent,
    GetPermissions,
    GetPolicy,
    ListGrants,
    PolicyQuery,
    PolicyRequest,
    TryPolicy,
)
from passerelle.core.read_models.task import show_record
from passerelle.core.session.device_requests import (
    AckEvents,
    DeviceQuery,
    DeviceRequest,
    GetChannels,
    GetPushKey,
    ListDevices,
    ReconnectChannel,
    SendNotice,
)
from passerelle.core.session.requests import ListSessions
from passerelle.core.session.webhook_requests import (
    DeleteStreamWebhook,
    ListStreamWebhooks,
    SetStreamWebhook,
)
from passerelle.core.task.requests import ListRecords, TaskRequest
from passerelle.core.wire.codec import to_wire
from passerelle.core.wire.record import change
from passerelle.core.wire.trace import read_trace
from passerelle.delegation.runs.answers import Answers, OpenTurn
from passerelle.permission_bridge.answers.actions import find_record
from passerelle.runtime.common.calls import require_operation
from passerelle.runtime.common.carried import TRACE, choose_trace
from passerelle.runtime.limits.costs import FREE
from passerelle.runtime.records.long_content import LongContent, LongTaskError, Shape
from passerelle.runtime.records.references import MEMBER, NOTHING

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable

    from passerelle.a2a_mapping.resume import ResumeWish
    from passerelle.channels.stream_ends import StreamEnd
    from passerelle.channels.stream_frame import Followed
    from passerelle.channels.task_follower import Following
    from passerelle.control.cancellation import Cancelling
    from passerelle.control.catalogue import Catalogue
    from passerelle.control.device_streams import DeviceStreams
    from passerelle.control.outputs import Outputs
    from passerelle.control.policy_control import PolicyControl
    from passerelle.control.read_models import ChannelSummaries, Models
    from passerelle.control.task_control import SessionControl, TaskControl
    from passerelle.core.commands import Command, OtherCommand, Query, Result
    from passerelle.core.peer import Peer
    from passerelle.core.ports.projections import Projections
    from passerelle.core.principal import Principal
    from passerelle.core.session.requests import SessionRequest
    from passerelle.core.task.record import TaskRecord
    from passerelle.core.wire.json import JsonObject
    from passerelle.delegation.runs.active_runs import Begun, ResultCallback
    from passerelle.delegation.runs.dispatch import Dispatch
    from passerelle.delegation.runs.follow_ups import FollowUps
    from passerelle.delegation.runs.inputs import Inputs
    from passerelle.delegation.runs.plan import Planner
    from passerelle.delegation.runs.retries import Retries
    from passerelle.delegation.runs.turn_templates import TemplatedTurns
    from passerelle.delegation.runs.turns import OpenedTurn, Turns
    from passerelle.permission_bridge.answers.actions import Actions
    from passerelle.permission_bridge.answers.audit import Auditing
    from passerelle.permission_bridge.answers.question_lists import QuestionLists, QuestionWaits
    from passerelle.permission_bridge.devices.devices import Devices
    from passerelle.runtime.records.contents import Contents
    from passerelle.runtime.records.inbox_arrivals import InboxArrivals
    from passerelle.runtime.records.ownership import Ownership
    from passerelle.runtime.records.references import References, Referred
    from passerelle.runtime.records.task_lists import Records
    from passerelle.runtime.records.task_pages import Listing
    from passerelle.runtime.records.writes import Writes
    from passerelle.webhooks.dead_letters import DeadLetters
    from passerelle.webhooks.push_configs import PushConfigs


@dataclass(frozen=True, slots=True)
class Service:
    """The parts behind one door."""

    writes: Writes
    turns: Turns
    templated_turns: TemplatedTurns
    follow_ups: FollowUps
    inputs: Inputs
    actions: Actions
    question_waits: QuestionWaits
    question_lists: QuestionLists
    arrivals: InboxArrivals
    ownership: Ownership
    references: References
    retries: Retries
    listing: Listing
    models: Models
    contents: Contents
    outputs: Outputs
    answers: Answers
    following: Following
    push_configs: PushConfigs
    dead_letters: DeadLetters
    catalogue: Catalogue
    projections: Projections
    dispatch: Dispatch
    find_peer: Callable[[str], Peer]
    planning: Planner
    cancelling: Cancelling
    records: Records
    task_control: TaskControl
    session_control: SessionControl
    device_streams: DeviceStreams
    devices: Devices
    auditing: Auditing
    channel_summaries: ChannelSummaries
    policy_control: PolicyControl
    message_bounds: MessageBounds = field(default_factory=MessageBounds)

    def execute(
        self, principal: Principal, command: Command, idem: str | None
    ) -> Awaitable[Result]:
        """Carries out a command, once per idempotency key and principal (CMD-30), also for a caller that goes."""
        if isinstance(command, SubmitTurn):
            return self.dispatch.commands.open_run(self._submit(principal, command, idem))
        return self.dispatch.commands.see_through(self._carry_out(principal, command, idem))

    def begin(
        self, principal: Principal, command: SubmitTurn, told: ResultCallback[OpenTurn]
    ) -> None:
        """The same for a message without a key, for whoever does not wait and is told."""
        self.dispatch.commands.begin(self._open(principal, command), told)

    async def _open(
        self, principal: Principal, command: SubmitTurn
    ) -> tuple[OpenTurn, Begun | None]:
        peer = self._admit(principal, command)
        referred = await self._refer(principal, command)
        opened, begun = await self._open_turn(principal, command, None, peer, referred)
        driver = None if begun is None else begun[0]
        return OpenTurn(opened, self.answers, principal, driver), begun

    async def _carry_out(
        self, principal: Principal, command: OtherCommand, idem: str | None
    ) -> Result:
        await self.policy_control.governing.govern(principal, command)
        match command:
            case CancelTask():
                return await self.cancelling.cancel(principal, command)
            case RespondAction():
                return await self._respond(principal, command)
            case SetPushConfig():
                return PushConfigSet(await self.push_configs.set(principal, command, idem))
            case DeletePushConfig():
                await self.push_configs.delete(principal, command)
                return PushConfigDeleted()
            case RetryDelivery():
                return await self.dead_letters.retry(principal, command)
            case (
                AckEvents()
                | ReconnectChannel()
                | SendNotice()
                | SetStreamWebhook()
                | DeleteStreamWebhook()
            ):
                return await self.device_streams.execute(
                    ServiceAccess(self), ServiceSnapshots(self), principal, command, idem
                )
            case _:
                return await self._control(principal, command, idem)

    async def _control(
        self,
        principal: Principal,
        command: TaskRequest | SessionRequest | DeviceRequest | PolicyRequest,
        idem: str | None,
    ) -> Result:
        if isinstance(command, PolicyRequest):
            return await self.policy_control.execute(principal, command, idem)
        if isinstance(command, TaskRequest):
            return await self.task_control.execute(principal, command, idem)
        if isinstance(command, DeviceRequest):
            return await self.devices.execute(principal, command, idem)
        return await self.session_control.execute(principal, command, idem)

    async def read(self, principal: Principal, query: Query) -> JsonObject:
        """Answers a query from stored state; of an agent nothing but its card is ever asked."""
        match query:
            case GetTask():
                return await self._read_task(principal, query)
            case ListTasks():
                return await self.listing.list_tasks(principal, query)
            case GetRecord():
                owned = await self.ownership.find(principal, query.task, None, hidden=True)
                require_operation(principal, owned.record.kind, Method.GET_TASK)
                whole = await self.contents.name_artifacts(owned.record)
                return {**to_wire(show_record(whole)), "version": owned.held.stamp.version}
            case GetSession() | GetSessionTasks() | GetThread() | GetTaskModel():
                return await self.models.read(principal, query)
            case GetAction() | ListActions():
                return await self._read_actions(principal, query)
            case GetPushConfig():
                return await self.push_configs.read(principal, query)
            case ListPushConfigs():
                return await self.push_configs.list(principal, query)
            case ListAgents():
                return await self.catalogue.list(principal, query)
            case ListDeliveries():
                return await self.dead_letters.list(principal, query)
            case _:
                return await self._read_others(principal, query)

    async def _read_others(
        self,
        principal: Principal,
        query: ListRecords
        | ListSessions
        | GetOutput
        | GetChannels
        | ListStreamWebhooks
        | DeviceQuery
        | GetAudit
        | PolicyQuery,
    ) -> JsonObject:
        match query:
            case GetOutput():
                return await self.outputs.read(principal, query)
            case ListRecords():
                return await self.records.list_tasks(principal, query)
            case ListSessions():
                return await self.session_control.sessions.list_sessions(principal, query)
            case GetChannels():
                return await self.channel_summaries.read(principal, query)
            case GetAudit():
                return await self.auditing.read(principal, query)
            case ListStreamWebhooks():
                webhooks = self.device_streams.webhooks
                return await webhooks.list_all(ServiceAccess(self), principal, query)
            case ListDevices() | GetPushKey():
                return await self.devices.read(principal, query)
            case (
                ListGrants()
                | ListMutes()
                | EvaluatePermission()
                | GetActionContent()
                | ExplainAction()
                | TryPolicy()
                | GetPermissions()
                | GetPolicy()
            ):
                return await self.policy_control.read(principal, query)
            case _:
                assert_never(query)

    async def _read_actions(
        self, principal: Principal, query: GetAction | ListActions
    ) -> JsonObject:
        if isinstance(query, GetAction):
            return await self.question_waits.read(principal, query)
        page = await self.question_lists.find(principal, query)
        name = "pending" if query.state == "pending" else "closed"
        return {name: [*page.views], "nextPageToken": page.token}

    async def list_pending(self, principal: Principal, limit: int) -> list[JsonObject]:
        """The newest open questions of the caller."""
        return (await self.question_lists.find(principal, ListActions(limit))).views

    async def answer(
        self, principal: Principal, accepted: TurnAccepted, *, at_once: bool = False
    ) -> JsonObject:
        """Waits for the answer of a turn of the caller: ``{"task": …}`` or ``{"message": …}`` in A2A form.

        Raises:
            NotFound: the task was given to somebody else meanwhile.
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
        wish: ResumeWish | None = None,
        until: StreamEnd | None = None,
        sends: bool = False,
    ) -> AsyncGenerator[Followed]:
        """The frames of a turn from its beginning, or of a task (a facade id): the Task first, then what comes.

        ``wish`` goes on after a cursor; it is looked at when the task has proved to be the caller's. ``until`` says
        where the stream ends before the task does. A reader of a task that ``sends`` a message next adds its turn to
        ``awaits``, and gets the Task with that message in it; one whose message had been taken before names the turn.

        Raises:
            NotFound: no task of the caller.
            UnsupportedOperation: the task has ended.
            PeerRefused, InvalidAgentResponse: the agent did not take the message that had been sent before.
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
        wish: ResumeWish | None,
        until: StreamEnd | None,
        sends: bool,  # noqa: FBT001  of one caller
    ) -> Followed:
        # Apart, so that the record is let go: the body of ``follow`` lasts as long as its reader.
        owned = await self.ownership.find(principal, facade, agent)
        return await self.following.follow_task(stack, owned, facade, wish, until, sends=sends)

    async def _read_task(self, principal: Principal, query: GetTask) -> JsonObject:
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
        return (await self._shape(owned.record, query))(task)

    async def _shape(self, record: TaskRecord, query: GetTask) -> Shape:
        """What makes of a Task what a query asks for."""
        cursor = str(await self.following.locate(record)) if query.marked else None

        def shape(task: JsonObject) -> JsonObject:
            cut = cut_history(task, query.history_length)
            return cut if cursor is None else mark(cut, record.generation, cursor)

        return shape

    def _admit(self, principal: Principal, command: SubmitTurn) -> Peer:
        """The agent of a message that may come in, as far as nobody has to be asked.

        Raises:
            NotFound, InvalidInput, Draining: it may not.
        """
        if not principal.may_call(command.agent):
            raise NotFound("agent", command.agent)
        self.message_bounds.judge(command.message)
        # What is started from here on, the run among it, belongs to the caller's trace (ENV-8).
        parent = command.traceparent
        caller = read_trace(parent, command.tracestate) if parent else None
        TRACE.set(choose_trace(caller, self.writes.ids.draw))
        peer = self.find_peer(command.agent)
        if self.dispatch.runs.is_draining:
            raise Draining("this instance is shutting down", retry_after_s=1)
        if command.push is not None:
            self.push_configs.check(command.push)
        return peer

    async def _submit(
        self, principal: Principal, command: SubmitTurn, idem: str | None
    ) -> tuple[TurnAccepted, Begun | None]:
        peer = self._admit(principal, command)
        referred = await self._refer(principal, command)
        if command.task is not None:
            return await self._follow_up(principal, command, idem), None
        opened, begun = await self._open_turn(principal, command, idem, peer, referred)
        return opened.accept(), begun

    async def _refer(self, principal: Principal, command: SubmitTurn) -> Referred:
        """What the message refers to."""
        if MEMBER not in command.message:
            return NOTHING
        return await self.references.find(principal, command.agent, command.message)

    async def _open_turn(
        self,
        principal: Principal,
        command: SubmitTurn,
        idem: str | None,
        peer: Peer,
        referred: Referred,
    ) -> tuple[OpenedTurn, Begun | None]:
        """Stores a turn that opens a task, and makes its driver."""
        plan = await self.planning.plan(principal, command, peer)
        if referred.tasks:
            plan = replace(
                plan,
                sources=referred.tasks,
                source_runs=referred.runs,
                consumed=referred.consumed,
            )
        if referred.unknown:
            plan = change(plan, facts=(*plan.facts, _note_unknown(referred.unknown)))
        charge = FREE
        try:
            if self.planning.charges:
                charge = await self.planning.charge(principal, command)
                plan = change(plan, facts=(*plan.facts, *charge.facts))
            opened = None if idem else await self.templated_turns.open(principal, command, plan)
            if opened is None:
                opened = await self.turns.open(principal, command, idem, plan)
        except BaseException:
            charge.refund()
            raise
        if opened.repeated:
            charge.refund()
            return opened, None
        params: JsonObject = {**(command.params or {}), "message": command.message}
        return opened, self.dispatch.begin(opened, peer, command.message, params, referred)

    async def _follow_up(
        self, principal: Principal, command: SubmitTurn, idem: str | None
    ) -> TurnAccepted:
        charge = await self.planning.charge(principal, command)
        try:
            if command.push is not None:
                await self.push_configs.set_with_message(principal, command, command.push)
            accepted = await self.follow_ups.take(principal, command, idem)
        except BaseException:
            charge.refund()
            raise
        if accepted.repeated:
            charge.refund()
        return accepted

    async def _respond(self, principal: Principal, command: RespondAction) -> ActionAnswered:
        answered, written = await self.actions.respond(principal, command)
        record = find_record(written.held, command.action_id)
        self.dispatch.wake(record.scope.task_id or "", command.action_id, written)
        peer = record.request.origin.peer
        if command.mute_minutes is not None and peer is not None:
            # An answer that is repeated finds itself and comes here again, so that this cannot be lost beside it.
            await self.policy_control.attending.mute(principal, peer, command.mute_minutes)
        return answered


def _note_unknown(count: int) -> WarningRaised:
    """Says that references were left out, and not which: the caller has written them."""
    which = "a task that is" if count == 1 else f"{count} tasks that are"
    return WarningRaised(
        "reference_unknown", f"the message refers to {which} not known here; the agent is not told"
    )
