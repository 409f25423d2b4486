"""Builds the parts that reach callers, devices and webhooks; ``parts`` puts them together with the others."""

from __future__ import annotations

from typing import TYPE_CHECKING

from passerelle.channels.task_follower import TaskFollower
from passerelle.control.channel_access import StreamGrants
from passerelle.control.device_streams import ChannelNotices, DeviceStreams
from passerelle.control.read_models import ChannelSummaries
from passerelle.core.frozen import frozen
from passerelle.core.principal import OWNER
from passerelle.gateway.handlers import LinkHandlers
from passerelle.permission_bridge.devices.action_tokens import ActionTokens
from passerelle.permission_bridge.devices.devices import Devices
from passerelle.permission_bridge.devices.pairing import Pairing
from passerelle.permission_bridge.devices.subscriptions import BrowserSubscriptions
from passerelle.permission_bridge.devices.web_push import WebPush, is_installed
from passerelle.runtime.common.clock import SystemClock
from passerelle.runtime.records.places import Home
from passerelle.runtime.records.recoveries import Recoveries
from passerelle.runtime.records.row_reads import RowReads
from passerelle.webhooks.dead_letters import DeadLetters
from passerelle.webhooks.notifier import KIND as NOTIFIER
from passerelle.webhooks.notifier import NotifierKind
from passerelle.webhooks.push import PushKind
from passerelle.webhooks.push_configs import KIND as PUSH
from passerelle.webhooks.push_configs import PushConfigs
from passerelle.webhooks.stream import StreamWebhookKind
from passerelle.webhooks.stream_webhooks import KIND as STREAM
from passerelle.webhooks.stream_webhooks import StreamWebhooks

if TYPE_CHECKING:
    from passerelle.control.channel_access import StreamSnapshots
    from passerelle.control.read_models import Models
    from passerelle.gateway.dependencies import CoreServices, Dependencies
    from passerelle.runtime.records.writes import Writes
    from passerelle.webhooks.kinds import TargetKind
    from passerelle.webhooks.webhooks import Webhooks


@frozen
class Notifying:
    """What reports to callers: streams of events, and webhooks of each kind."""

    following: TaskFollower
    push_configs: PushConfigs
    stream_webhooks: StreamWebhooks
    dead_letters: DeadLetters


def make_notifying(services: CoreServices, webhooks: Webhooks) -> Notifying:
    """Builds the streams of task events, and the webhooks of each kind."""
    deps, store, writes = services.deps, services.store, services.writes
    following = TaskFollower(writes, deps.hub, services.contents, services.arrivals)
    push_configs = PushConfigs(
        writes, services.ownership, webhooks.sealer, webhooks.rules, webhooks.deliver_final
    )
    stream_webhooks = StreamWebhooks(
        writes,
        store.targets,
        store.channels,
        Home(writes),
        StreamGrants(writes, services.arrivals, store.projections),
        webhooks.sealer,
        webhooks.rules,
    )
    kinds: dict[str, TargetKind] = {
        PUSH: PushKind(push_configs, following, webhooks.authority, deps.find_principal),
        STREAM: StreamWebhookKind(stream_webhooks, store.log, SystemClock(), deps.find_principal),
        NOTIFIER: _make_notifiers(deps, writes),
    }
    dead_letters = DeadLetters(store.targets, kinds, deps.wake_duties)
    return Notifying(following, push_configs, stream_webhooks, dead_letters)


def _make_notifiers(deps: Dependencies, writes: Writes) -> NotifierKind:
    store = deps.store
    named = {one.name: one for one in deps.notifiers}
    return NotifierKind(named, store.log, store.projections, SystemClock(), Home(writes), OWNER)


def make_link_handlers(
    services: CoreServices,
    webhooks: Webhooks,
    notifying: Notifying,
    models: Models,
    served: tuple[StreamGrants, StreamSnapshots],
) -> LinkHandlers:
    """Builds the handlers for links, devices and webhooks; ``served`` grants and reads streams of events."""
    store, writes, (grants, snapshots) = services.store, services.writes, served
    recoveries = Recoveries(writes, store.projections)
    return LinkHandlers(
        streams=DeviceStreams(
            grants,
            snapshots,
            store.acks,
            store.channels,
            RowReads(snapshots.packets),
            recoveries,
            services.deps.clock,
        ),
        notices=ChannelNotices(Home(writes), store.channels),
        summaries=ChannelSummaries(
            models, writes, store.acks, store.channels, notifying.stream_webhooks
        ),
        devices=_make_devices(services, webhooks),
        webhooks=notifying.stream_webhooks,
        push_configs=notifying.push_configs,
        dead_letters=notifying.dead_letters,
        catalogue=services.deps.catalogue,
        describe_capabilities=services.deps.describe_capabilities,
    )


def _make_devices(services: CoreServices, webhooks: Webhooks) -> Devices:
    deps, store, lists = services.deps, services.store, services.lists
    return Devices(
        lists=lists,
        pairing=Pairing(lists, deps.ids, deps.clock, deps.find_gateway_address),
        subscriptions=BrowserSubscriptions(lists, webhooks.sealer, webhooks.rules),
        actions=services.actions,
        arrivals=services.arrivals,
        channels=store.channels,
        projections=store.projections,
        clock=deps.clock,
        web_push=_make_web_push(deps, webhooks),
        tokens=ActionTokens(webhooks.sealer, deps.clock, deps.ids, deps.buttons),
    )


def _make_web_push(deps: Dependencies, webhooks: Webhooks) -> WebPush | None:
    sender, sealer = deps.push_sender, webhooks.sealer
    if sender is None or sealer is None or not is_installed():
        return None
    return WebPush(
        deps.store.push_keys, sealer, sender, webhooks.rules, SystemClock(), deps.push_contact
    )
