"""The parts of a gateway put together over a store: the only place that knows them all."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from passerelle.channels.task_follower import Following
from passerelle.control.cancellation import Cancelling
from passerelle.control.channel_access import StreamGrants, StreamSnapshots
from passerelle.control.closure import Finishing
from passerelle.control.creation import Creating, Preparing
from passerelle.control.device_streams import ChannelNotices, DeviceStreams
from passerelle.control.edges import Linking
from passerelle.control.handlers import Handlers
from passerelle.control.interruption import Interrupting
from passerelle.control.messages import Messages
from passerelle.control.outputs import Outputs
from passerelle.control.read_models import ChannelSummaries, Models, PermissionSummaries
from passerelle.control.rerun import Rerunning
from passerelle.control.service import Service
from passerelle.control.sessions import Sessions
from passerelle.control.start import Starting
from passerelle.control.task_changes import TaskChanges, TaskUpdates
from passerelle.control.task_reads import TaskReads
from passerelle.control.transfer import Giving
from passerelle.core.principal import OWNER
from passerelle.delegation.runs.answers import Answers
from passerelle.delegation.runs.follow_ups import FollowUps
from passerelle.delegation.runs.inputs import Inputs
from passerelle.delegation.runs.plan import Conditions, Planner
from passerelle.delegation.runs.retries import Retries
from passerelle.delegation.runs.turn_templates import TemplatedTurns
from passerelle.delegation.runs.turns import Turns
from passerelle.gateway.handlers import LinkHandlers, PermissionHandlers, TaskHandlers
from passerelle.gateway.settings.policy import read_tried_policy
from passerelle.gateway.surroundings import CoreServices, lay_ground
from passerelle.permission_bridge.answers.attention import Attending
from passerelle.permission_bridge.answers.audit import Auditing, Explaining
from passerelle.permission_bridge.answers.question_lists import QuestionLists, QuestionWaits
from passerelle.permission_bridge.answers.subjects import Subjects
from passerelle.permission_bridge.answers.workers import WorkerAsking
from passerelle.permission_bridge.devices.action_tokens import ActionTokens
from passerelle.permission_bridge.devices.devices import Devices
from passerelle.permission_bridge.devices.pairing import Pairing
from passerelle.permission_bridge.devices.subscriptions import Subscriptions
from passerelle.permission_bridge.devices.web_push import WebPush, is_installed
from passerelle.permission_bridge.governing.command_gate import Governing
from passerelle.permission_bridge.governing.dry_run import Rehearsing
from passerelle.permission_bridge.governing.judgement import Judging
from passerelle.permission_bridge.governing.rule_edits import PolicyEditing
from passerelle.runtime.records.lag import Lag
from passerelle.runtime.records.places import Home
from passerelle.runtime.records.recoveries import Recoveries
from passerelle.runtime.records.task_lists import Records
from passerelle.runtime.records.task_pages import Listing
from passerelle.runtime.records.writes import Writes
from passerelle.webhooks.dead_letters import DeadLetters
from passerelle.webhooks.notifier import KIND as NOTIFIER
from passerelle.webhooks.notifier import NotifierKind
from passerelle.webhooks.push import PushKind
from passerelle.webhooks.push_configs import KIND as PUSH
from passerelle.webhooks.push_configs import PushConfigs
from passerelle.webhooks.receivers import Receivers
from passerelle.webhooks.stream import StreamWebhookKind
from passerelle.webhooks.stream_webhooks import KIND as STREAM
from passerelle.webhooks.stream_webhooks import StreamWebhooks
from passerelle.webhooks.webhooks import Webhooks

if TYPE_CHECKING:
    from passerelle.delegation.runs.dispatch import Dispatch
    from passerelle.gateway.surroundings import Dependencies
    from passerelle.permission_bridge.answers.actions import Actions
    from passerelle.runtime.records.contents import Contents
    from passerelle.runtime.records.inbox_arrivals import InboxArrivals
    from passerelle.webhooks.kinds import TargetKind


@dataclass(frozen=True, slots=True)
class _Telling:
    """What tells callers of their tasks: streams, and webhooks of each kind."""

    following: Following
    push_configs: PushConfigs
    stream_webhooks: StreamWebhooks
    dead_letters: DeadLetters


@dataclass(frozen=True, slots=True)
class _Working:
    """What opens, sends and ends tasks."""

    turns: Turns
    conditions: Conditions
    planning: Planner
    inputs: Inputs
    governing: Governing
    cancelling: Cancelling
    finishing: Finishing


@dataclass(frozen=True, slots=True)
class Parts:
    """A service, and the parts behind it that edges and duties work with as well."""

    service: Service
    dispatch: Dispatch
    writes: Writes
    contents: Contents
    actions: Actions
    arrivals: InboxArrivals
    inputs: Inputs
    retries: Retries
    following: Following
    grants: StreamGrants
    snapshots: StreamSnapshots
    tasks: TaskHandlers
    permissions: PermissionHandlers
    links: LinkHandlers


def make_parts(around: Dependencies, webhooks: Webhooks | None = None) -> Parts:
    """The service object over its surroundings, with its parts; without webhooks push is refused."""
    webhooks = webhooks or Webhooks()
    ground = lay_ground(around, webhooks.sealer)
    store, dispatch, writes = ground.store, ground.dispatch, ground.writes
    telling = _make_telling(ground, webhooks)
    working = _make_working(ground, telling.push_configs)
    questions = QuestionLists(ground.actions, store.projections, ground.arrivals)
    grants, snapshots = StreamGrants(writes, ground.arrivals), StreamSnapshots(writes, questions)
    models = _make_models(ground)
    tasks = _make_task_handlers(ground, telling, working, models)
    permissions = _make_permission_handlers(ground, models, tasks.records, questions)
    links = _make_link_handlers(ground, webhooks, telling, models, (grants, snapshots))
    handlers = Handlers()
    for group in (tasks, permissions, links):
        group.register(handlers)
    answers = Answers(writes, ground.contents, dispatch)
    messages = _make_messages(ground, telling.push_configs, working, answers)
    service = Service(
        messages,
        handlers,
        working.governing,
        answers,
        telling.following,
        ground.ownership,
        dispatch.commands,
    )
    return Parts(
        service=service,
        dispatch=dispatch,
        writes=writes,
        contents=ground.contents,
        actions=ground.actions,
        arrivals=ground.arrivals,
        inputs=working.inputs,
        retries=Retries(dispatch, ground.references),
        following=telling.following,
        grants=grants,
        snapshots=snapshots,
        tasks=tasks,
        permissions=permissions,
        links=links,
    )


def _make_messages(
    ground: CoreServices, push_configs: PushConfigs, working: _Working, answers: Answers
) -> Messages:
    around, writes, dispatch = ground.around, ground.writes, ground.dispatch
    blobs, inputs = ground.store.blobs, working.inputs
    return Messages(
        turns=working.turns,
        templated_turns=TemplatedTurns(working.turns),
        follow_ups=FollowUps(writes, blobs, ground.actions, ground.ownership, dispatch, inputs),
        references=ground.references,
        push_configs=push_configs,
        planning=working.planning,
        dispatch=dispatch,
        answers=answers,
        find_peer=around.find_peer,
        ids=around.ids,
        bounds=around.message_bounds,
    )


def _make_telling(ground: CoreServices, webhooks: Webhooks) -> _Telling:
    around, store, writes = ground.around, ground.store, ground.writes
    following = Following(writes, store.log, around.hub, ground.contents, ground.arrivals)
    push_configs = PushConfigs(
        writes, ground.ownership, webhooks.sealer, webhooks.rules, webhooks.deliver_final
    )
    stream_webhooks = StreamWebhooks(
        writes,
        store.targets,
        store.channels,
        store.log,
        Home(writes),
        webhooks.sealer,
        webhooks.rules,
    )
    kinds: dict[str, TargetKind] = {
        PUSH: PushKind(push_configs, following, webhooks.authority),
        STREAM: StreamWebhookKind(stream_webhooks, store.log, around.machine),
        NOTIFIER: _make_notifiers(around, writes),
    }
    dead_letters = DeadLetters(store.targets, kinds, around.news)
    return _Telling(following, push_configs, stream_webhooks, dead_letters)


def _make_working(ground: CoreServices, push_configs: PushConfigs) -> _Working:
    around, writes, dispatch = ground.around, ground.writes, ground.dispatch
    finishing = Finishing(writes, ground.ownership, dispatch)
    turns = Turns(
        writes,
        ground.store.blobs,
        push_configs,
        dispatch.mend,
        dispatch.list_row,
        around.regain,
    )
    planning = Planner(writes, around.find_terms, around.drives, around.find_rules, around.spending)
    return _Working(
        turns=turns,
        conditions=Conditions(around.find_terms),
        planning=planning,
        inputs=Inputs(dispatch),
        governing=Governing(ground.actions, ground.ownership, dispatch),
        cancelling=Cancelling(writes, ground.ownership, dispatch, finishing),
        finishing=finishing,
    )


def _make_records(ground: CoreServices) -> Records:
    around, store = ground.around, ground.store
    lag = Lag(store.projections, around.clock)
    return Records(ground.writes, store.log, store.projections, around.catalogue.list_names, lag)


def _make_models(ground: CoreServices) -> Models:
    store = ground.store
    receivers = Receivers(store.targets, store.acks)
    clock, contents = ground.around.clock, ground.contents
    return Models(ground.writes, store.log, ground.ownership, clock, receivers, contents)


def _make_task_handlers(
    ground: CoreServices, telling: _Telling, working: _Working, models: Models
) -> TaskHandlers:
    around, store, writes, dispatch = ground.around, ground.store, ground.writes, ground.dispatch
    ownership, contents, turns = ground.ownership, ground.contents, working.turns
    changes, records = TaskChanges(writes, ownership, dispatch), _make_records(ground)
    return TaskHandlers(
        reads=TaskReads(ownership, contents, telling.following),
        listing=Listing(writes, store.log, store.projections, contents),
        records=records,
        models=models,
        outputs=Outputs(writes, ownership, contents, store.blobs, store.copies, around.outputs),
        creating=Creating(
            turns, ownership, store.projections, around.find_peer, working.conditions
        ),
        starting=Starting(
            turns,
            ownership,
            working.planning,
            ground.references,
            Preparing(writes),
            dispatch,
            around.find_peer,
            around.message_bounds,
        ),
        updates=TaskUpdates(changes, around.find_peer, working.conditions),
        giving=Giving(changes, around.find_principal, store.channels, telling.stream_webhooks),
        finishing=working.finishing,
        cancelling=working.cancelling,
        rerunning=Rerunning(turns.writes, ownership, working.planning, dispatch, around.find_peer),
        linking=Linking(changes),
        sessions=Sessions(records),
        interrupting=Interrupting(records, working.cancelling, dispatch, working.governing),
    )


def _make_permission_handlers(
    ground: CoreServices,
    models: Models,
    records: Records,
    questions: QuestionLists,
) -> PermissionHandlers:
    around, dispatch, actions = ground.around, ground.dispatch, ground.actions
    granting, log = dispatch.consulting.granting, ground.store.log
    rehearsing = Rehearsing(records, log, around.list_callers, read_tried_policy)
    return PermissionHandlers(
        question_waits=QuestionWaits(actions, around.hub),
        question_lists=questions,
        attending=Attending(actions, dispatch, around.store.mutes),
        auditing=Auditing(actions, log),
        explaining=Explaining(actions, log),
        subjects=Subjects(actions, dispatch.blobs),
        granting=granting,
        judging=Judging(
            granting,
            ground.ownership,
            around.find_rules,
            around.find_terms,
            lambda agent: agent in around.catalogue.list_names(),
            around.ids,
        ),
        summaries=PermissionSummaries(models, granting, around.find_rules),
        editing=PolicyEditing(
            ground.writes, around.rulebook, around.find_rules, around.store.rule_news, rehearsing
        ),
        workers=WorkerAsking(actions, dispatch),
    )


def _make_link_handlers(
    ground: CoreServices,
    webhooks: Webhooks,
    telling: _Telling,
    models: Models,
    served: tuple[StreamGrants, StreamSnapshots],
) -> LinkHandlers:
    store, writes, (grants, snapshots) = ground.store, ground.writes, served
    recoveries = Recoveries(writes, store.log, store.projections)
    return LinkHandlers(
        access=grants,
        streams=DeviceStreams(
            grants,
            snapshots,
            store.acks,
            store.channels,
            store.log,
            recoveries,
            ground.around.clock,
        ),
        notices=ChannelNotices(Home(writes), store.channels),
        summaries=ChannelSummaries(
            models, writes, store.acks, store.channels, telling.stream_webhooks
        ),
        devices=_make_devices(ground, webhooks),
        webhooks=telling.stream_webhooks,
        push_configs=telling.push_configs,
        dead_letters=telling.dead_letters,
        catalogue=ground.around.catalogue,
    )


def _make_notifiers(around: Dependencies, writes: Writes) -> NotifierKind:
    store = around.store
    named = {one.name: one for one in around.notifiers}
    return NotifierKind(named, store.log, store.projections, around.machine, Home(writes), OWNER)


def _make_devices(ground: CoreServices, webhooks: Webhooks) -> Devices:
    around, store, lists = ground.around, ground.store, ground.lists
    return Devices(
        lists=lists,
        pairing=Pairing(lists, around.ids, around.clock, around.find_entrance),
        subscriptions=Subscriptions(lists, webhooks.sealer, webhooks.rules),
        actions=ground.actions,
        arrivals=ground.arrivals,
        channels=store.channels,
        projections=store.projections,
        log=store.log,
        clock=around.clock,
        web_push=_make_web_push(around, webhooks),
        tokens=ActionTokens(webhooks.sealer, around.clock, around.ids, around.buttons),
    )


def _make_web_push(around: Dependencies, webhooks: Webhooks) -> WebPush | None:
    sender, sealer = around.push_sender, webhooks.sealer
    if sender is None or sealer is None or not is_installed():
        return None
    return WebPush(
        around.store.push_keys, sealer, sender, webhooks.rules, around.machine, around.push_contact
    )
