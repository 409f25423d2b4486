"""Builds the parts of a gateway over a store; the only module that knows all of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from passerelle.channels.task_follower import TaskFollower
from passerelle.control.agent_pauses import AgentPausing
from passerelle.control.cancellation import Cancelling
from passerelle.control.channel_access import StreamGrants, StreamSnapshots
from passerelle.control.closure import Finishing
from passerelle.control.compaction import Compacting
from passerelle.control.creation import Creating, Preparing
from passerelle.control.edges import Linking
from passerelle.control.evidence import Exporting
from passerelle.control.evidence_facts import EvidenceReader
from passerelle.control.handlers import Handlers
from passerelle.control.interruption import Interrupting
from passerelle.control.messages import Messages
from passerelle.control.outputs import Outputs
from passerelle.control.oversight import Oversight
from passerelle.control.prerequisites import Prerequisites
from passerelle.control.read_models import Models, PermissionSummaries
from passerelle.control.rerun import Rerunning
from passerelle.control.rollback import RollingBack
from passerelle.control.router import Router
from passerelle.control.service import Service
from passerelle.control.sessions import Sessions
from passerelle.control.start import Starting
from passerelle.control.start_routing import StartRouting
from passerelle.control.subagents import SubagentReads
from passerelle.control.task_changes import TaskChanges, TaskUpdates
from passerelle.control.task_graph import GraphBounds
from passerelle.control.task_reads import TaskReads
from passerelle.control.thread_contexts import ThreadContexts
from passerelle.control.tool_inventory import ToolInventories
from passerelle.control.transfer import TaskTransfers
from passerelle.control.turn_histories import TurnHistories
from passerelle.control.turn_queues import TurnQueues
from passerelle.core.frozen import frozen
from passerelle.delegation.runs.admission import AttemptAdmission
from passerelle.delegation.runs.agent_queues import AgentQueues
from passerelle.delegation.runs.answers import Answers
from passerelle.delegation.runs.follow_ups import FollowUps
from passerelle.delegation.runs.inputs import Inputs
from passerelle.delegation.runs.plan import Conditions, Planner
from passerelle.delegation.runs.queued_attempts import QueuedAttempts
from passerelle.delegation.runs.quota_waits import QuotaWaits
from passerelle.delegation.runs.retries import Retries
from passerelle.delegation.runs.turn_templates import TemplatedTurns
from passerelle.delegation.runs.turns import Turns
from passerelle.gateway.dependencies import CoreServices, make_core_services
from passerelle.gateway.handlers import (
    LinkHandlers,
    PermissionHandlers,
    TaskHandlers,
    register_bulk,
)
from passerelle.gateway.link_parts import Notifying, make_link_handlers, make_notifying
from passerelle.gateway.oversight import register_oversight
from passerelle.gateway.schedules import ScheduleHandlers, make_schedules
from passerelle.gateway.settings.policy import read_tried_policy
from passerelle.gateway.subagents import SubagentHandlers, make_subagents
from passerelle.permission_bridge.answers.attention import Attending
from passerelle.permission_bridge.answers.audit import Auditing
from passerelle.permission_bridge.answers.question_lists import QuestionLists, QuestionWaits
from passerelle.permission_bridge.answers.subjects import Subjects
from passerelle.permission_bridge.answers.workers import WorkerApprovals
from passerelle.permission_bridge.governing.command_gate import CommandGate
from passerelle.permission_bridge.governing.dry_run import PolicyDryRun
from passerelle.permission_bridge.governing.judgement import PolicyPreview
from passerelle.permission_bridge.governing.rule_edits import PolicyEditing
from passerelle.runtime.records.lag import Lag
from passerelle.runtime.records.packet_reads import PacketReads
from passerelle.runtime.records.places import Home
from passerelle.runtime.records.task_lists import TaskLists
from passerelle.runtime.records.task_pages import Listing
from passerelle.runtime.records.writes import Writes
from passerelle.webhooks.push_configs import PushConfigs
from passerelle.webhooks.receivers import Receivers
from passerelle.webhooks.webhooks import Webhooks

if TYPE_CHECKING:
    from passerelle.control.agent_health import AgentWatch
    from passerelle.control.overview import Overviews
    from passerelle.control.subtrees import Subtrees
    from passerelle.delegation.runs.dispatch import Dispatch
    from passerelle.gateway.dependencies import Dependencies
    from passerelle.permission_bridge.answers.actions import Actions
    from passerelle.runtime.records.contents import Contents
    from passerelle.runtime.records.inbox_arrivals import InboxArrivals


@frozen
class _TaskParts:
    """What opens, sends and ends tasks."""

    turns: Turns
    conditions: Conditions
    planning: Planner
    inputs: Inputs
    governing: CommandGate
    cancelling: Cancelling
    finishing: Finishing


@frozen
class Parts:
    """A service, and the parts behind it that edges and duties use as well."""

    service: Service
    dispatch: Dispatch
    writes: Writes
    contents: Contents
    actions: Actions
    arrivals: InboxArrivals
    inputs: Inputs
    retries: Retries
    queues: AgentQueues
    turn_queues: TurnQueues
    pausing: AgentPausing
    following: TaskFollower
    grants: StreamGrants
    snapshots: StreamSnapshots
    tasks: TaskHandlers
    subtrees: Subtrees
    permissions: PermissionHandlers
    links: LinkHandlers
    schedules: ScheduleHandlers
    subagents: SubagentHandlers
    overviews: Overviews
    agent_watch: AgentWatch


def make_parts(deps: Dependencies, webhooks: Webhooks | None = None) -> Parts:
    """Builds the service and its parts; without ``webhooks`` push notifications are rejected."""
    webhooks = webhooks or Webhooks()
    services = make_core_services(deps, webhooks.sealer)
    store, dispatch, writes = services.store, services.dispatch, services.writes
    notifying, tools = make_notifying(services, webhooks), _make_tools(services)
    queues = _make_queues(services)
    task_parts = _make_task_parts(services, notifying.push_configs, queues)
    turn_queues = TurnQueues(
        writes, queues, task_parts.cancelling, task_parts.governing, deps.find_principal
    )
    questions = QuestionLists(services.actions, store.projections, services.arrivals)
    oversight = Oversight(writes, Home(writes))
    grants = StreamGrants(writes, services.arrivals, store.projections, oversight)
    models = _make_models(services)
    tasks = _make_task_handlers(services, notifying, task_parts, models, tools, oversight, queues)
    snapshots = StreamSnapshots(
        writes,
        questions,
        PacketReads(services.contents),
        store.projections,
        tasks.records,
    )
    pausing = AgentPausing(
        writes, deps.pauses, store.queues, store.due.hasten, deps.catalogue.list_names
    )
    permissions = _make_permission_handlers(services, models, tasks.records, questions, tools)
    links = make_link_handlers(services, webhooks, notifying, models, (grants, snapshots))
    answers = Answers(dispatch, queues)
    router = tasks.starting.routing.router
    messages = _make_messages(
        services, notifying.push_configs, task_parts, answers, tools, router, turn_queues
    )
    schedules = make_schedules(
        services, messages, task_parts.cancelling, tasks.reads, task_parts.governing
    )
    handlers = Handlers()
    subagents = make_subagents(services, messages, tasks, task_parts.governing, handlers)
    for group in (tasks, permissions, links, schedules, subagents):
        group.register(handlers)
    pausing.register(handlers)
    turn_queues.register(handlers)
    overviews, agent_watch = register_oversight(handlers, deps, tasks, dispatch.runs)
    subtrees = register_bulk(
        handlers, tasks.records, task_parts.governing, tasks.updates.changes, deps.find_principal
    )
    service = Service(
        messages,
        handlers,
        task_parts.governing,
        answers,
        notifying.following,
        services.ownership,
        dispatch.commands,
    )
    return Parts(
        service=service,
        dispatch=dispatch,
        writes=writes,
        contents=services.contents,
        actions=services.actions,
        arrivals=services.arrivals,
        inputs=task_parts.inputs,
        retries=Retries(dispatch, services.references, queues),
        queues=queues,
        turn_queues=turn_queues,
        pausing=pausing,
        following=notifying.following,
        grants=grants,
        snapshots=snapshots,
        tasks=tasks,
        subtrees=subtrees,
        permissions=permissions,
        links=links,
        schedules=schedules,
        subagents=subagents,
        overviews=overviews,
        agent_watch=agent_watch,
    )


def _make_messages(
    services: CoreServices,
    push_configs: PushConfigs,
    task_parts: _TaskParts,
    answers: Answers,
    tools: ToolInventories,
    router: Router,
    turn_queues: TurnQueues,
) -> Messages:
    deps, writes, dispatch = services.deps, services.writes, services.dispatch
    inputs = task_parts.inputs
    return Messages(
        turns=task_parts.turns,
        templated_turns=TemplatedTurns(task_parts.turns),
        follow_ups=FollowUps(writes, services.actions, services.ownership, dispatch, inputs),
        references=services.references,
        prerequisites=Prerequisites(services.references.ownership),
        push_configs=push_configs,
        planning=task_parts.planning,
        dispatch=dispatch,
        answers=answers,
        queues=turn_queues.queues,
        router=router,
        find_peer=deps.find_peer,
        ids=deps.ids,
        bounds=deps.message_bounds,
        interrupt=turn_queues.interrupt,
        resolve_tools=tools.resolve,
        check_room=services.store.memory.check_room,
    )


def _make_router(services: CoreServices, tools: ToolInventories) -> Router:
    deps = services.deps
    return Router(
        deps.catalogue,
        deps.find_terms,
        deps.spending,
        tools.resolve,
        deps.clock,
        services.dispatch.detach,
        deps.pauses,
    )


def _make_queues(services: CoreServices) -> AgentQueues:
    deps, store = services.deps, services.store
    attempts = QueuedAttempts(services.dispatch, services.references)
    admission = AttemptAdmission(store.queues, deps.pauses, QuotaWaits(deps.spending), deps.clock)
    return AgentQueues(admission, attempts, deps.find_peer, store.due.extend_claim)


def _make_tools(services: CoreServices) -> ToolInventories:
    deps = services.deps
    judging = PolicyPreview(
        services.dispatch.consulting.granting,
        services.ownership,
        deps.find_rules,
        deps.find_terms,
        lambda agent: agent in deps.catalogue.list_names(),
        deps.ids,
    )
    return ToolInventories(deps.catalogue, judging)


def _make_task_parts(
    services: CoreServices, push_configs: PushConfigs, queues: AgentQueues
) -> _TaskParts:
    deps, writes, dispatch = services.deps, services.writes, services.dispatch
    finishing = Finishing(services.ownership, dispatch)
    turns = Turns(
        writes,
        services.store.blobs,
        push_configs,
        dispatch.adopt_if_undriven,
        dispatch.list_row,
        queues.list_waiting,
        deps.regain,
    )
    planning = Planner(writes, deps.find_terms, deps.drives, deps.find_rules, deps.spending)
    return _TaskParts(
        turns=turns,
        conditions=Conditions(deps.find_terms),
        planning=planning,
        inputs=Inputs(dispatch),
        governing=CommandGate(services.actions, services.ownership, dispatch),
        cancelling=Cancelling(writes, services.ownership, dispatch, finishing),
        finishing=finishing,
    )


def _make_records(services: CoreServices) -> TaskLists:
    deps, store = services.deps, services.store
    lag = Lag(store.projections, deps.clock)
    return TaskLists(services.writes, store.projections, deps.catalogue.list_names, lag)


def _make_models(services: CoreServices) -> Models:
    store = services.store
    receivers = Receivers(store.targets, store.acks)
    clock, contents = services.deps.clock, services.contents
    return Models(services.writes, services.ownership, clock, receivers, contents, store.queues)


def _make_task_handlers(
    services: CoreServices,
    notifying: Notifying,
    task_parts: _TaskParts,
    models: Models,
    tools: ToolInventories,
    oversight: Oversight,
    queues: AgentQueues,
) -> TaskHandlers:
    deps, store, writes, dispatch = (
        services.deps,
        services.store,
        services.writes,
        services.dispatch,
    )
    ownership, contents, turns = services.ownership, services.contents, task_parts.turns
    changes, records = TaskChanges(writes, ownership, dispatch), _make_records(services)
    histories = TurnHistories(writes)
    return TaskHandlers(
        reads=TaskReads(ownership, contents, notifying.following, store.runtime_id, models),
        listing=Listing(writes, store.projections, contents),
        records=records,
        models=models,
        outputs=Outputs(ownership, contents, store.copies, deps.outputs),
        creating=Creating(
            turns,
            ownership,
            store.projections,
            deps.find_peer,
            task_parts.conditions,
            store.memory.check_room,
        ),
        starting=Starting(
            turns,
            ownership,
            task_parts.planning,
            services.references,
            Preparing(writes),
            dispatch,
            queues,
            StartRouting(_make_router(services, tools), writes),
            deps.find_peer,
            deps.message_bounds,
            tools.resolve,
        ),
        updates=TaskUpdates(changes, deps.find_peer, task_parts.conditions),
        giving=TaskTransfers(
            changes, deps.find_principal, store.channels, notifying.stream_webhooks
        ),
        finishing=task_parts.finishing,
        cancelling=task_parts.cancelling,
        rerunning=Rerunning(ownership, task_parts.planning, dispatch, deps.find_peer),
        linking=Linking(changes, GraphBounds(writes)),
        sessions=Sessions(records),
        interrupting=Interrupting(
            records, task_parts.cancelling, dispatch, task_parts.governing, queues.pull
        ),
        rolling_back=RollingBack(histories),
        compacting=Compacting(histories, ownership, contents),
        thread_contexts=ThreadContexts(models, histories, store.blobs),
        exporting=Exporting(
            changes,
            EvidenceReader(ownership, services.lists),
            store.blobs,
            deps.evidence_signer,
        ),
        oversight=oversight,
        subagents=SubagentReads(models),
    )


def _make_permission_handlers(
    services: CoreServices,
    models: Models,
    records: TaskLists,
    questions: QuestionLists,
    tools: ToolInventories,
) -> PermissionHandlers:
    deps, dispatch, actions = services.deps, services.dispatch, services.actions
    granting = dispatch.consulting.granting
    dry_run = PolicyDryRun(records, services.store.log, deps.list_callers, read_tried_policy)
    return PermissionHandlers(
        question_waits=QuestionWaits(actions, deps.hub),
        question_lists=questions,
        attending=Attending(actions, dispatch, deps.store.mutes, deps.time_decision),
        auditing=Auditing(actions),
        subjects=Subjects(actions, dispatch.blobs),
        granting=granting,
        judging=tools.judging,
        tools=tools,
        summaries=PermissionSummaries(models, granting, deps.find_rules),
        editing=PolicyEditing(
            services.writes, deps.rulebook, deps.find_rules, deps.store.rule_news, dry_run
        ),
        workers=WorkerApprovals(actions, dispatch),
    )
