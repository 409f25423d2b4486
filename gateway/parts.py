"""The parts of a gateway put together over a store: the only place that knows them all."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import structlog

from passerelle.core.facts import RetryPolicy
from passerelle.core.message_bounds import MessageBounds
from passerelle.gateway.auth.keys import OWNER
from passerelle.gateway.callbacks import Callbacks
from passerelle.gateway.control.actions import Actions
from passerelle.gateway.control.answers import Answers
from passerelle.gateway.control.attending import Attending
from passerelle.gateway.control.auditing import Auditing
from passerelle.gateway.control.cancelling import Cancelling
from passerelle.gateway.control.catalogue import Catalogue
from passerelle.gateway.control.channel_notices import ChannelNotices
from passerelle.gateway.control.channel_summaries import ChannelSummaries
from passerelle.gateway.control.conditions import Conditions
from passerelle.gateway.control.contents import Contents
from passerelle.gateway.control.creating import Creating
from passerelle.gateway.control.dead_letters import DeadLetters
from passerelle.gateway.control.device_streams import DeviceStreams
from passerelle.gateway.control.explaining import Explaining
from passerelle.gateway.control.finishing import Finishing
from passerelle.gateway.control.follow_ups import FollowUps
from passerelle.gateway.control.following import Following
from passerelle.gateway.control.giving import Giving
from passerelle.gateway.control.governing import Governing
from passerelle.gateway.control.granting import Granting
from passerelle.gateway.control.home import Home
from passerelle.gateway.control.interrupting import Interrupting
from passerelle.gateway.control.judging import Judging
from passerelle.gateway.control.lag import Lag
from passerelle.gateway.control.linking import Linking
from passerelle.gateway.control.listing import Listing
from passerelle.gateway.control.models import Models
from passerelle.gateway.control.outputs import Outputs
from passerelle.gateway.control.ownership import Ownership
from passerelle.gateway.control.permission_summaries import PermissionSummaries
from passerelle.gateway.control.plain_turns import PlainTurns
from passerelle.gateway.control.planning import Planning
from passerelle.gateway.control.policy_control import PolicyControl
from passerelle.gateway.control.policy_editing import PolicyEditing
from passerelle.gateway.control.preparing import Preparing
from passerelle.gateway.control.push_configs import KIND as PUSH
from passerelle.gateway.control.push_configs import PushConfigs
from passerelle.gateway.control.question_lists import QuestionLists
from passerelle.gateway.control.question_waits import QuestionWaits
from passerelle.gateway.control.receivers import Receivers
from passerelle.gateway.control.records import Records
from passerelle.gateway.control.recoveries import Recoveries
from passerelle.gateway.control.references import References
from passerelle.gateway.control.refusals import Refusals
from passerelle.gateway.control.rehearsing import Rehearsing
from passerelle.gateway.control.rerunning import Rerunning
from passerelle.gateway.control.service import Service
from passerelle.gateway.control.sessions import Sessions
from passerelle.gateway.control.starting import Starting
from passerelle.gateway.control.stream_webhooks import StreamWebhooks
from passerelle.gateway.control.subjects import Subjects
from passerelle.gateway.control.task_changes import TaskChanges
from passerelle.gateway.control.task_control import SessionControl, TaskControl
from passerelle.gateway.control.turns import Turns
from passerelle.gateway.control.webhook_names import KIND as STREAM
from passerelle.gateway.control.worker_asking import WorkerAsking
from passerelle.gateway.control.writes import Writes
from passerelle.gateway.delegation.consulting import Consulting
from passerelle.gateway.delegation.dispatch import Dispatch
from passerelle.gateway.delegation.habits import Habits
from passerelle.gateway.delegation.inputs import Inputs
from passerelle.gateway.delegation.open_text import OpenTexts
from passerelle.gateway.delegation.patience import Patience
from passerelle.gateway.delegation.retries import Retries
from passerelle.gateway.delegation.runs import Runs
from passerelle.gateway.devices.action_tokens import ActionTokens
from passerelle.gateway.devices.assurance import Assurance, Demand
from passerelle.gateway.devices.device_lists import DeviceLists
from passerelle.gateway.devices.devices import Devices
from passerelle.gateway.devices.entrance import Entrance
from passerelle.gateway.devices.pairing import Pairing
from passerelle.gateway.devices.subscriptions import Subscriptions
from passerelle.gateway.devices.web_push import WebPush, is_installed
from passerelle.gateway.hooks.calling import HookCaller
from passerelle.gateway.hooks.hearing import Hooks
from passerelle.gateway.outputs.policy import OutputPolicy
from passerelle.gateway.rulebook import Rulebook
from passerelle.gateway.targets.notifier import KIND as NOTIFIER
from passerelle.gateway.targets.notifier import NotifierKind
from passerelle.gateway.targets.push import PushKind
from passerelle.gateway.targets.stream import StreamKind
from passerelle.gateway.targets.webhooks import Webhooks

if TYPE_CHECKING:
    from collections.abc import Callable

    from passerelle.channels.hub import Hub
    from passerelle.core.batch import Incarnation
    from passerelle.core.ids import Shard
    from passerelle.core.json import JsonObject
    from passerelle.core.payloads.approval import Risk
    from passerelle.core.peer import Peer
    from passerelle.core.ports.chance import Clock, Ids
    from passerelle.core.principal import Principal
    from passerelle.gateway.control.glimpse import Glimpse
    from passerelle.gateway.limits.spending import Spending
    from passerelle.gateway.targets.kinds import TargetKind
    from passerelle.gateway.targets.notifier import Notifier
    from passerelle.gateway.targets.sender import WebhookSender
    from passerelle.permission_bridge.rules import Policy
    from passerelle.store.store import Store


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a service stands on."""

    store: Store
    hub: Hub
    clock: Clock
    ids: Ids
    find_peer: Callable[[str], Peer]
    retry_policy: Callable[[str], RetryPolicy]
    drives: Callable[[Shard], Incarnation]
    may_send: Callable[[Shard], bool]
    find_tags: Callable[[str], frozenset[str]]
    find_rules: Callable[[], Policy]
    patience: Patience
    tally: Callable[[str, float], None]
    news: Callable[[Shard, bool], None]
    glimpse: Callable[[Glimpse], None] = lambda _glimpse: None
    """Told of questions that were stored here, so that the relay need not read them."""
    outputs: OutputPolicy = field(default_factory=OutputPolicy)
    catalogue: Catalogue = field(default_factory=Catalogue)
    spending: Spending | None = None
    message_bounds: MessageBounds = field(default_factory=MessageBounds)
    rulebook: Rulebook = field(default_factory=Rulebook)
    list_callers: Callable[[], tuple[Principal, ...]] = lambda: ()
    """Whom the configuration names."""
    find_acceptance: Callable[[str], tuple[JsonObject, ...]] = lambda _agent: ()
    """What every task of an agent must bring."""
    always_task: Callable[[str], bool] = lambda _agent: False
    """Whether an agent's bare messages are shown as tasks."""
    correlates: Callable[[str], bool] = lambda _agent: False
    """Whether messages to an agent carry a key of ours."""
    adapt: Callable[[str, Patience], Patience] = lambda _agent, patience: patience
    """The patience with one agent."""
    hooks: Hooks = field(default_factory=lambda: Hooks(HookCaller()))
    """Calls code of the operator's."""
    public_url: str | None = None
    """Where peers can call back; None: they cannot."""
    push_sender: WebhookSender | None = None
    """What Web Push goes through; None: there is none."""
    push_contact: str = ""
    buttons: Risk = "low"
    """Up to which risk notifications have buttons."""
    notifiers: tuple[Notifier, ...] = ()
    """Receivers of questions that the operator has set."""
    signatures: Demand = "paired"
    """Of whom signed decisions are wanted."""
    find_principal: Callable[[str, str], Principal | None] = lambda _id, _tenant: None
    """A principal by id and tenant, as far as the configuration says; None where it is not in there."""
    find_entrance: Callable[[], Entrance] = Entrance
    """Where devices come in."""


def make_service(around: Surroundings, webhooks: Webhooks | None = None) -> Service:
    """The service object over its surroundings; without webhooks push is refused."""
    store = around.store
    writes = Writes(
        store.log,
        around.clock,
        around.ids,
        store.runtime_id,
        around.tally,
        around.news,
        glimpse=around.glimpse,
    )
    contents = Contents(store.log, store.blobs)
    runs, ownership = Runs(structlog.get_logger("passerelle")), Ownership(writes)
    references = References(ownership, contents)
    dispatch = _make_dispatch(around, writes, contents, runs, references)
    lists = DeviceLists(writes)
    actions, inputs = _make_actions(around, writes, lists), Inputs(dispatch)
    following = Following(writes, store.log, around.hub, contents)
    webhooks = webhooks or Webhooks()
    push_configs = PushConfigs(
        writes, ownership, webhooks.sealer, webhooks.rules, webhooks.deliver_final
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
        STREAM: StreamKind(stream_webhooks, store.log, around.clock),
        NOTIFIER: _make_notifiers(around, writes),
    }
    turns = Turns(writes, store.blobs, push_configs, dispatch.mend, dispatch.list_row)
    conditions = Conditions(around.find_acceptance)
    planning = Planning(
        writes, around.retry_policy, around.drives, conditions, around.find_rules, around.spending
    )
    finishing = Finishing(writes, ownership, dispatch)
    cancelling = Cancelling(writes, ownership, contents, dispatch, finishing)
    governing = Governing(actions, ownership, dispatch)
    records = Records(
        writes,
        store.log,
        store.projections,
        around.catalogue.list_names,
        Lag(store.projections, around.clock),
    )
    sessions = Sessions(records)
    receivers = Receivers(store.targets, store.acks)
    models = Models(writes, store.log, ownership, around.clock, receivers)
    return Service(
        writes=writes,
        turns=turns,
        plain_turns=PlainTurns(turns),
        follow_ups=FollowUps(writes, store.blobs, actions, ownership, dispatch, inputs),
        inputs=inputs,
        actions=actions,
        question_waits=QuestionWaits(actions, around.hub),
        question_lists=QuestionLists(actions, store.projections),
        ownership=ownership,
        references=references,
        retries=Retries(dispatch, references, around.retry_policy),
        listing=Listing(writes, store.log, store.projections, contents),
        models=models,
        contents=contents,
        outputs=Outputs(writes, ownership, contents, store.blobs, store.copies, around.outputs),
        answers=Answers(writes, contents, dispatch),
        following=following,
        push_configs=push_configs,
        dead_letters=DeadLetters(store.targets, kinds, around.news),
        catalogue=around.catalogue,
        projections=store.projections,
        dispatch=dispatch,
        find_peer=around.find_peer,
        is_draining=lambda: runs.is_draining,
        planning=planning,
        cancelling=cancelling,
        records=records,
        task_control=_make_task_control(
            around,
            turns,
            TaskChanges(writes, ownership, dispatch),
            planning,
            references,
            finishing,
            conditions,
            stream_webhooks,
        ),
        session_control=SessionControl(
            sessions, Interrupting(records, cancelling, dispatch, governing)
        ),
        devices=_make_devices(around, webhooks, lists, actions),
        channel_summaries=ChannelSummaries(
            models, writes, store.acks, store.channels, stream_webhooks
        ),
        auditing=Auditing(actions, store.log),
        device_streams=DeviceStreams(
            store.acks,
            store.channels,
            store.log,
            Recoveries(writes, store.log, store.projections),
            ChannelNotices(Home(writes), store.channels),
            stream_webhooks,
            around.clock,
        ),
        policy_control=_make_policy_control(around, dispatch, ownership, actions, records, models),
        message_bounds=around.message_bounds,
    )


def _make_dispatch(
    around: Surroundings, writes: Writes, contents: Contents, runs: Runs, references: References
) -> Dispatch:
    store = around.store
    return Dispatch(
        writes=writes,
        blobs=store.blobs,
        copies=store.copies,
        uploads=store.uploads,
        contents=contents,
        projections=store.projections,
        runs=runs,
        clock=around.clock,
        log=runs.log,
        find_peer=around.find_peer,
        drives=around.drives,
        may_send=around.may_send,
        find_tags=around.find_tags,
        find_rules=around.find_rules,
        outputs=around.outputs,
        habits=Habits(store.habits),
        references=references,
        replicas=store.replicas,
        consulting=Consulting(
            Granting(writes, around.find_rules), around.hooks, around.find_rules, around.clock
        ),
        open_text=OpenTexts(store.deltas, around.clock, around.ids, store.runtime_id),
        correlates=around.correlates,
        adapt=around.adapt,
        patience=around.patience,
        spending=around.spending,
        always_task=around.always_task,
        callbacks=_make_callbacks(around, writes),
    )


def _make_task_control(
    around: Surroundings,
    turns: Turns,
    changes: TaskChanges,
    planning: Planning,
    references: References,
    finishing: Finishing,
    conditions: Conditions,
    webhooks: StreamWebhooks,
) -> TaskControl:
    ownership, dispatch = changes.ownership, changes.dispatch
    return TaskControl(
        changes=changes,
        creating=Creating(turns, ownership, around.store.projections, around.find_peer, conditions),
        starting=Starting(
            turns,
            ownership,
            planning,
            references,
            Preparing(turns.writes),
            dispatch,
            around.find_peer,
            around.message_bounds,
        ),
        finishing=finishing,
        rerunning=Rerunning(turns.writes, ownership, planning, dispatch, around.find_peer),
        linking=Linking(changes),
        giving=Giving(changes, around.find_principal, around.store.channels, webhooks),
        find_peer=around.find_peer,
        conditions=conditions,
    )


def _make_callbacks(around: Surroundings, writes: Writes) -> Callbacks | None:
    if around.public_url is None:
        return None
    return Callbacks(around.store.callbacks, writes, around.ids, around.clock, around.public_url)


def _make_notifiers(around: Surroundings, writes: Writes) -> NotifierKind:
    store = around.store
    named = {one.name: one for one in around.notifiers}
    return NotifierKind(named, store.log, store.projections, around.clock, Home(writes), OWNER)


def _make_actions(around: Surroundings, writes: Writes, lists: DeviceLists) -> Actions:
    return Actions(writes, Assurance(lists, around.signatures), Refusals(writes))


def _make_devices(
    around: Surroundings, webhooks: Webhooks, lists: DeviceLists, actions: Actions
) -> Devices:
    store = around.store
    return Devices(
        lists=lists,
        pairing=Pairing(lists, around.ids, around.clock, around.find_entrance),
        subscriptions=Subscriptions(lists, webhooks.sealer, webhooks.rules),
        actions=actions,
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
        around.store.push_keys, sealer, sender, webhooks.rules, around.clock, around.push_contact
    )


def _make_policy_control(
    around: Surroundings,
    dispatch: Dispatch,
    ownership: Ownership,
    actions: Actions,
    records: Records,
    models: Models,
) -> PolicyControl:
    granting = dispatch.consulting.granting
    return PolicyControl(
        granting,
        Judging(
            granting,
            ownership,
            around.find_rules,
            around.find_tags,
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
            Rehearsing(records, dispatch.writes.log, around.list_callers),
        ),
    )
