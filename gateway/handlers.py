"""The handler of each command and query: where to look for what a method of ``/v1`` or of A2A calls.

A message to an agent is not in here: the service passes it to ``control/messages.py``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from passerelle.control.archived_sessions import ArchivedSessions
from passerelle.control.bulk import BulkChanges
from passerelle.control.handlers import Handlers, without_key
from passerelle.control.subtrees import Subtrees
from passerelle.core.approval.requests import (
    GetAudit,
    ListMutes,
    MutePeer,
    NoteSeen,
    ReturnAgain,
    UnmutePeer,
)
from passerelle.core.commands import (
    CancelTask,
    DeletePushConfig,
    GetAction,
    GetArchived,
    GetCapabilities,
    GetOutput,
    GetPushConfig,
    GetRecord,
    GetSession,
    GetSessionTasks,
    GetTask,
    GetTaskModel,
    GetThread,
    GetThreadContext,
    ListActions,
    ListAgents,
    ListDeliveries,
    ListPushConfigs,
    ListTasks,
    RespondAction,
    RetryDelivery,
    SetPushConfig,
)
from passerelle.core.errors import Forbidden
from passerelle.core.evidence.requests import ExportBundle, GetBundle
from passerelle.core.frozen import frozen
from passerelle.core.policy.requests import (
    AskPermission,
    EvaluatePermission,
    ExplainAction,
    GetActionContent,
    GetPermissions,
    GetPolicy,
    GetToolInventory,
    ListGrants,
    ResolvePermission,
    RevokeGrant,
    SetBypass,
    SetPolicy,
    TryPolicy,
    UsePermission,
    WithdrawPermission,
)
from passerelle.core.session.device_requests import (
    AckEvents,
    ConfirmDevice,
    GetChannels,
    GetPushKey,
    ListDevices,
    PairDevice,
    ReconnectChannel,
    RemoveDevicePush,
    RenameDevice,
    RevokeDevice,
    SendNotice,
    SetDevicePush,
)
from passerelle.core.session.requests import (
    CompactThread,
    DescribeSession,
    InterruptTurn,
    ListSessions,
    OpenSession,
    ResumeThread,
    RollBackThread,
)
from passerelle.core.session.webhook_requests import (
    DeleteStreamWebhook,
    ListStreamWebhooks,
    SetStreamWebhook,
)
from passerelle.core.subagent.requests import GetSubagent, GetSubagentEvents, ListSubagents
from passerelle.core.task.bulk import ChangeTasks
from passerelle.core.task.requests import (
    AppendTaskProgress,
    CompleteTask,
    CreateTask,
    FailTask,
    GiveTask,
    LinkTasks,
    ListRecords,
    PauseTask,
    ResumeTask,
    RetryTask,
    StartTask,
    UnlinkTasks,
    UpdateTask,
)
from passerelle.core.wire.codec import to_wire

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from passerelle.control.cancellation import Cancelling
    from passerelle.control.catalogue import Catalogue
    from passerelle.control.closure import Finishing
    from passerelle.control.compaction import Compacting
    from passerelle.control.creation import Creating
    from passerelle.control.device_streams import ChannelNotices, DeviceStreams
    from passerelle.control.edges import Linking
    from passerelle.control.evidence import Exporting
    from passerelle.control.interruption import Interrupting
    from passerelle.control.outputs import Outputs
    from passerelle.control.oversight import Oversight
    from passerelle.control.read_models import ChannelSummaries, Models, PermissionSummaries
    from passerelle.control.rerun import Rerunning
    from passerelle.control.rollback import RollingBack
    from passerelle.control.sessions import Sessions
    from passerelle.control.start import Starting
    from passerelle.control.subagents import SubagentReads
    from passerelle.control.task_changes import TaskChanges, TaskUpdates
    from passerelle.control.task_reads import TaskReads
    from passerelle.control.thread_contexts import ThreadContexts
    from passerelle.control.tool_inventory import ToolInventories
    from passerelle.control.transfer import TaskTransfers
    from passerelle.core.commands import OtherCommand, Result
    from passerelle.core.principal import Principal
    from passerelle.core.read_models.capabilities import CapabilityPage
    from passerelle.core.wire.json import JsonObject
    from passerelle.permission_bridge.answers.attention import Attending
    from passerelle.permission_bridge.answers.audit import Auditing
    from passerelle.permission_bridge.answers.grants import GrantService
    from passerelle.permission_bridge.answers.question_lists import QuestionLists, QuestionWaits
    from passerelle.permission_bridge.answers.subjects import Subjects
    from passerelle.permission_bridge.answers.workers import WorkerApprovals
    from passerelle.permission_bridge.devices.devices import Devices
    from passerelle.permission_bridge.governing.command_gate import CommandGate
    from passerelle.permission_bridge.governing.judgement import PolicyPreview
    from passerelle.permission_bridge.governing.rule_edits import PolicyEditing
    from passerelle.runtime.records.task_lists import TaskLists
    from passerelle.runtime.records.task_pages import Listing
    from passerelle.webhooks.dead_letters import DeadLetters
    from passerelle.webhooks.push_configs import PushConfigs
    from passerelle.webhooks.stream_webhooks import StreamWebhooks


C = TypeVar("C")


@frozen
class TaskHandlers:
    """Handles commands and queries about tasks and sessions."""

    reads: TaskReads
    listing: Listing
    records: TaskLists
    models: Models
    outputs: Outputs
    creating: Creating
    starting: Starting
    updates: TaskUpdates
    giving: TaskTransfers
    finishing: Finishing
    cancelling: Cancelling
    rerunning: Rerunning
    linking: Linking
    sessions: Sessions
    interrupting: Interrupting
    rolling_back: RollingBack
    compacting: Compacting
    thread_contexts: ThreadContexts
    exporting: Exporting
    oversight: Oversight
    subagents: SubagentReads

    def register(self, handlers: Handlers) -> None:
        """Registers them."""
        handlers.on_command(CreateTask, self.creating.create)
        handlers.on_command(StartTask, self.starting.start)
        handlers.on_command(UpdateTask, self.updates.update)
        handlers.on_command(AppendTaskProgress, self.updates.steer)
        handlers.on_command(PauseTask, self.updates.steer)
        handlers.on_command(ResumeTask, self.updates.steer)
        handlers.on_command(GiveTask, self.giving.transfer)
        handlers.on_command(CompleteTask, self.finishing.complete)
        handlers.on_command(FailTask, self.finishing.fail)
        handlers.on_repeatable(CancelTask, self.cancelling.cancel)
        handlers.on_command(RetryTask, self.rerunning.rerun)
        handlers.on_command(LinkTasks, self.linking.link)
        handlers.on_command(UnlinkTasks, self.linking.unlink)
        handlers.on_command(OpenSession, self.sessions.open)
        handlers.on_command(DescribeSession, self.sessions.describe)
        handlers.on_repeatable(InterruptTurn, self.interrupting.interrupt)
        handlers.on_repeatable(ResumeThread, self.interrupting.resume)
        handlers.on_command(RollBackThread, self.rolling_back.roll_back)
        handlers.on_command(CompactThread, self.compacting.compact)
        handlers.on_repeatable(ExportBundle, self.exporting.export)
        handlers.on_query(GetBundle, self.exporting.read)
        handlers.on_query(GetTask, self.reads.read)
        over = self.oversight.over
        handlers.on_query(GetRecord, over(self.reads.read_record))
        handlers.on_query(ListTasks, self.listing.list_tasks)
        handlers.on_query(ListRecords, over(self.records.list_tasks))
        handlers.on_query(GetOutput, over(self.outputs.read))
        handlers.on_query(GetTaskModel, over(self.models.read_task))
        handlers.on_query(GetThread, over(self.models.read_thread))
        handlers.on_query(GetThreadContext, over(self.thread_contexts.read))
        handlers.on_query(GetSession, over(self.models.read_session))
        handlers.on_query(GetSessionTasks, over(self.models.read_tasks))
        handlers.on_query(ListSubagents, over(self.subagents.list_all))
        handlers.on_query(GetSubagent, over(self.subagents.read))
        handlers.on_query(GetSubagentEvents, over(self.subagents.read_events))
        handlers.on_query(GetArchived, over(ArchivedSessions(self.models).read))
        handlers.on_query(ListSessions, self.sessions.list_sessions)


@frozen
class PermissionHandlers:
    """Handles commands and queries about approvals and policy."""

    question_waits: QuestionWaits
    question_lists: QuestionLists
    attending: Attending
    auditing: Auditing
    subjects: Subjects
    granting: GrantService
    judging: PolicyPreview
    tools: ToolInventories
    summaries: PermissionSummaries
    editing: PolicyEditing
    workers: WorkerApprovals

    def register(self, handlers: Handlers) -> None:
        """Registers them."""
        handlers.on_repeatable(RespondAction, self.attending.respond)
        handlers.on_repeatable(NoteSeen, self.attending.execute)
        handlers.on_repeatable(ReturnAgain, self.attending.execute)
        handlers.on_repeatable(MutePeer, self.attending.execute)
        handlers.on_repeatable(UnmutePeer, self.attending.execute)
        handlers.on_repeatable(AskPermission, self.workers.ask)
        handlers.on_repeatable(UsePermission, self.workers.use)
        handlers.on_repeatable(WithdrawPermission, self.workers.withdraw)
        handlers.on_command(ResolvePermission, _for_people(without_key(self.workers.resolve)))
        handlers.on_command(RevokeGrant, _for_people(self.granting.revoke))
        handlers.on_command(SetBypass, _for_people(self.granting.set_bypass))
        handlers.on_command(SetPolicy, _for_people(self.editing.edit))
        handlers.on_query(GetAction, self.question_waits.read)
        handlers.on_query(ListActions, self.question_lists.list_page)
        handlers.on_query(GetActionContent, self.subjects.read)
        handlers.on_query(ExplainAction, self.auditing.explain)
        handlers.on_query(GetAudit, self.auditing.read)
        handlers.on_query(ListGrants, lambda principal, _: self.granting.show(principal))
        handlers.on_query(ListMutes, self.attending.list_mutes)
        handlers.on_query(EvaluatePermission, self.judging.evaluate)
        handlers.on_query(GetToolInventory, self.tools.read)
        handlers.on_query(GetPermissions, self.summaries.read)
        handlers.on_query(GetPolicy, lambda principal, _: self.editing.show(principal))
        handlers.on_query(TryPolicy, self.editing.dry_run.try_policy)


@frozen
class LinkHandlers:
    """Handles commands and queries about devices, channels, webhooks and the list of agents."""

    streams: DeviceStreams
    notices: ChannelNotices
    summaries: ChannelSummaries
    devices: Devices
    webhooks: StreamWebhooks
    push_configs: PushConfigs
    dead_letters: DeadLetters
    catalogue: Catalogue
    describe_capabilities: Callable[[], CapabilityPage]

    def register(self, handlers: Handlers) -> None:
        """Registers them."""
        handlers.on_repeatable(AckEvents, self.streams.acknowledge)
        handlers.on_repeatable(ReconnectChannel, self.streams.reconnect)
        handlers.on_command(SendNotice, self.notices.send)
        handlers.on_command(PairDevice, self.devices.execute)
        handlers.on_command(ConfirmDevice, self.devices.execute)
        handlers.on_command(RenameDevice, self.devices.execute)
        handlers.on_command(RevokeDevice, self.devices.execute)
        handlers.on_command(SetDevicePush, self.devices.execute)
        handlers.on_command(RemoveDevicePush, self.devices.execute)
        handlers.on_repeatable(SetStreamWebhook, self.webhooks.execute)
        handlers.on_repeatable(DeleteStreamWebhook, self.webhooks.execute)
        handlers.on_command(SetPushConfig, self.push_configs.set)
        handlers.on_repeatable(DeletePushConfig, self.push_configs.delete)
        handlers.on_repeatable(RetryDelivery, self.dead_letters.retry)
        handlers.on_query(ListDevices, self.devices.read)
        handlers.on_query(GetPushKey, self.devices.read)
        handlers.on_query(GetChannels, self.summaries.read)
        handlers.on_query(ListStreamWebhooks, self.webhooks.list_all)
        handlers.on_query(GetPushConfig, self.push_configs.read)
        handlers.on_query(ListPushConfigs, self.push_configs.list)
        handlers.on_query(ListDeliveries, self.dead_letters.list)
        handlers.on_query(ListAgents, self.catalogue.list)
        handlers.on_query(GetCapabilities, self._describe)

    async def _describe(self, _principal: Principal, _query: GetCapabilities) -> JsonObject:
        return to_wire(self.describe_capabilities())


def register_bulk(
    handlers: Handlers,
    records: TaskLists,
    governing: CommandGate,
    changes: TaskChanges,
    find_principal: Callable[[str, str], Principal | None],
) -> Subtrees:
    """Registers what changes many tasks: each goes through its command's handler, after the rules about commands."""

    async def execute(principal: Principal, command: OtherCommand, idem: str | None) -> Result:
        await governing.govern(principal, command)
        return await handlers.execute(principal, command, idem)

    handlers.on_command(ChangeTasks, BulkChanges(records, execute).change)
    subtrees = Subtrees(changes, find_principal, execute)
    for kind in (PauseTask, ResumeTask, RetryTask):
        handlers.commands[kind] = subtrees.over(handlers.commands[kind])
    return subtrees


def _for_people(
    handle: Callable[[Principal, C, str | None], Awaitable[Result]],
) -> Callable[[Principal, C, str | None], Awaitable[Result]]:
    """Wraps a command that loosens restrictions on agents: a credential of kind agent gets Forbidden."""

    async def judged(principal: Principal, command: C, idem: str | None) -> Result:
        if principal.kind == "agent":
            raise Forbidden("a credential of kind agent cannot change policy", kind=principal.kind)
        return await handle(principal, command, idem)

    return judged
