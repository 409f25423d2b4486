"""The parts of a gateway put together over a store: the only place that knows them all."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from passerelle.channels.task_follower import Following
from passerelle.control.cancellation import Cancelling
from passerelle.control.closure import Finishing
from passerelle.control.creation import Creating, Preparing
from passerelle.control.device_streams import ChannelNotices, DeviceStreams
from passerelle.control.edges import Linking
from passerelle.control.interruption import Interrupting
from passerelle.control.outputs import Outputs
from passerelle.control.policy_control import PolicyControl
from passerelle.control.read_models import ChannelSummaries, Models, PermissionSummaries
from passerelle.control.rerun import Rerunning
from passerelle.control.service import Service
from passerelle.control.sessions import Sessions
from passerelle.control.start import Starting
from passerelle.control.task_changes import TaskChanges
from passerelle.control.task_control import SessionControl, TaskControl
from passerelle.control.transfer import Giving
from passerelle.core.principal import OWNER
from passerelle.delegation.runs.answers import Answers
from passerelle.delegation.runs.follow_ups import FollowUps
from passerelle.delegation.runs.inputs import Inputs
from passerelle.delegation.runs.plan import Conditions, Planner
from passerelle.delegation.runs.retries import Retries
from passerelle.delegation.runs.turn_templates import TemplatedTurns
from passerelle.delegation.runs.turns import Turns
from passerelle.gateway.settings.policy import read_tried_policy
from passerelle.gateway.surroundings import Ground, lay_ground
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
from passerelle.webhooks.stream import StreamKind
from passerelle.webhooks.stream_webhooks import KIND as STREAM
from passerelle.webhooks.stream_webhooks import StreamWebhooks
from passerelle.webhooks.webhooks import Webhooks

if TYPE_CHECKING:
    from passerelle.gateway.surroundings import Surroundings
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
    finishing: Finishing
    cancelling: Cancelling


def make_service(around: Surroundings, webhooks: Webhooks | None = None) -> Service:
    """The service object over its surroundings; without webhooks push is refused."""
    webhooks = webhooks or Webhooks()
    ground = lay_ground(around, webhooks.sealer)
    store, dispatch, actions = ground.store, ground.dispatch, ground.actions
    writes, contents, ownership = ground.writes, ground.contents, ground.ownership
    telling = _make_telling(ground, webhooks)
    working = _make_working(ground, telling.push_configs)
    records, models, inputs = _make_records(ground), _make_models(ground), Inputs(dispatch)
    return Service(
        writes=writes,
        turns=working.turns,
        templated_turns=TemplatedTurns(working.turns),
        follow_ups=FollowUps(writes, store.blobs, actions, ownership, dispatch, inputs),
        inputs=inputs,
        actions=actions,
        question_waits=QuestionWaits(actions, around.hub),
        question_lists=QuestionLists(actions, store.projections, ground.arrivals),
        arrivals=ground.arrivals,
        ownership=ownership,
        references=ground.references,
        retries=Retries(dispatch, ground.references),
        listing=Listing(writes, store.log, store.projections, contents),
        models=models,
        contents=contents,
        outputs=Outputs(writes, ownership, contents, store.blobs, store.copies, around.outputs),
        answers=Answers(writes, contents, dispatch),
        following=telling.following,
        push_configs=telling.push_configs,
        dead_letters=telling.dead_letters,
        catalogue=around.catalogue,
        projections=store.projections,
        dispatch=dispatch,
        find_peer=around.find_peer,
        planning=working.planning,
        cancelling=working.cancelling,
        records=records,
        task_control=_make_task_control(ground, working, telling.stream_webhooks),
        session_control=_make_session_control(ground, working.cancelling, records),
        devices=_make_devices(ground, webhooks),
        channel_summaries=_make_channel_summaries(ground, models, telling.stream_webhooks),
        auditing=Auditing(actions, store.log),
        device_streams=_make_device_streams(ground, telling.stream_webhooks),
        policy_control=_make_policy_control(ground, records, models),
        message_bounds=around.message_bounds,
    )


def _make_telling(ground: Ground, webhooks: Webhooks) -> _Telling:
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
        STREAM: StreamKind(stream_webhooks, store.log, around.machine),
        NOTIFIER: _make_notifiers(around, writes),
    }
    dead_letters = DeadLetters(store.targets, kinds, around.news)
    return _Telling(following, push_configs, stream_webhooks, dead_letters)


def _make_working(ground: Ground, push_configs: PushConfigs) -> _Working:
    around, writes, dispatch = ground.around, ground.writes, ground.dispatch
    conditions = Conditions(around.find_terms)
    finishing = Finishing(writes, ground.ownership, dispatch)
    return _Working(
        Turns(
            writes,
            ground.store.blobs,
            push_configs,
            dispatch.mend,
            dispatch.list_row,
            around.regain,
        ),
        conditions,
        Planner(
            writes,
            around.find_terms,
            around.drives,
            around.find_rules,
            around.spending,
        ),
        finishing,
        Cancelling(writes, ground.ownership, dispatch, finishing),
    )


def _make_records(ground: Ground) -> Records:
    around, store = ground.around, ground.store
    lag = Lag(store.projections, around.clock)
    return Records(ground.writes, store.log, store.projections, around.catalogue.list_names, lag)


def _make_models(ground: Ground) -> Models:
    store = ground.store
    receivers = Receivers(store.targets, store.acks)
    clock, contents = ground.around.clock, ground.contents
    return Models(ground.writes, store.log, ground.ownership, clock, receivers, contents)


def _make_task_control(ground: Ground, working: _Working, webhooks: StreamWebhooks) -> TaskControl:
    around, turns, planning = ground.around, working.turns, working.planning
    ownership, dispatch = ground.ownership, ground.dispatch
    changes = TaskChanges(ground.writes, ownership, dispatch)
    return TaskControl(
        changes=changes,
        creating=Creating(
            turns, ownership, around.store.projections, around.find_peer, working.conditions
        ),
        starting=Starting(
            turns,
            ownership,
            planning,
            ground.references,
            Preparing(turns.writes),
            dispatch,
            around.find_peer,
            around.message_bounds,
        ),
        finishing=working.finishing,
        rerunning=Rerunning(turns.writes, ownership, planning, dispatch, around.find_peer),
        linking=Linking(changes),
        giving=Giving(changes, around.find_principal, around.store.channels, webhooks),
        find_peer=around.find_peer,
        conditions=working.conditions,
    )


def _make_session_control(
    ground: Ground, cancelling: Cancelling, records: Records
) -> SessionControl:
    governing = Governing(ground.actions, ground.ownership, ground.dispatch)
    interrupting = Interrupting(records, cancelling, ground.dispatch, governing)
    return SessionControl(Sessions(records), interrupting)


def _make_channel_summaries(
    ground: Ground, models: Models, webhooks: StreamWebhooks
) -> ChannelSummaries:
    store = ground.store
    return ChannelSummaries(models, ground.writes, store.acks, store.channels, webhooks)


def _make_device_streams(ground: Ground, webhooks: StreamWebhooks) -> DeviceStreams:
    store, writes = ground.store, ground.writes
    return DeviceStreams(
        store.acks,
        store.channels,
        store.log,
        Recoveries(writes, store.log, store.projections),
        ChannelNotices(Home(writes), store.channels),
        webhooks,
        ground.around.clock,
    )


def _make_notifiers(around: Surroundings, writes: Writes) -> NotifierKind:
    store = around.store
    named = {one.name: one for one in around.notifiers}
    return NotifierKind(named, store.log, store.projections, around.machine, Home(writes), OWNER)


def _make_devices(ground: Ground, webhooks: Webhooks) -> Devices:
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


def _make_web_push(around: Surroundings, webhooks: Webhooks) -> WebPush | None:
    sender, sealer = around.push_sender, webhooks.sealer
    if sender is None or sealer is None or not is_installed():
        return None
    return WebPush(
        around.store.push_keys, sealer, sender, webhooks.rules, around.machine, around.push_contact
    )


def _make_policy_control(ground: Ground, records: Records, models: Models) -> PolicyControl:
    around, dispatch, actions = ground.around, ground.dispatch, ground.actions
    ownership, granting = ground.ownership, dispatch.consulting.granting
    return PolicyControl(
        granting,
        Judging(
            granting,
            ownership,
            around.find_rules,
            around.find_terms,
            lambda agent: agent in around.catalogue.list_names(),
            around.ids,
        ),
        WorkerAsking(actions, dispatch),
        Explaining(actions, dispatch.writes.log),
        Governing(actions, ownership, dispatch),
        PermissionSummaries(models, granting, around.find_rules),
        Attending(actions, dispatch, around.store.mutes),
        Subjects(actions, dispatch.blobs),
        PolicyEditing(
            dispatch.writes,
            around.rulebook,
            around.find_rules,
            around.store.rule_news,
            Rehearsing(records, dispatch.writes.log, around.list_callers, read_tried_policy),
        ),
    )
