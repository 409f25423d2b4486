"""Builds the background work of an instance: duties, webhook deliveries, and the routing of runs to linked agents."""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING

from passerelle.channels.links import StoredLinkFacts
from passerelle.core.frozen import frozen
from passerelle.core.ids import Shard
from passerelle.delegation.duties.duty_loop import Duties, DutySettings, make_duties
from passerelle.delegation.duties.sweeps import SweepCounts
from passerelle.delegation.runs.deadlines import Deadlines
from passerelle.gateway.due_rows import list_handlers
from passerelle.gateway.reverse.routing import Routing
from passerelle.gateway.settings.approvals import read_notifiers, read_quiet_hours
from passerelle.gateway.settings.values import read_forget_terms, read_memory_terms
from passerelle.gateway.store_setup import find_archive_obstacle
from passerelle.permission_bridge.devices.attempts import DeliveryAttempts
from passerelle.permission_bridge.devices.delivery import Forwarding
from passerelle.permission_bridge.devices.push_hold import PushGate
from passerelle.permission_bridge.devices.reach import Reaching
from passerelle.permission_bridge.devices.web_push import PushSender
from passerelle.runtime.common.clock import SystemClock, SystemIds
from passerelle.runtime.observability.logs import INSTANCE
from passerelle.runtime.records.places import Home
from passerelle.runtime.records.recoveries import Recoveries
from passerelle.webhooks.deliveries import Deliveries
from passerelle.webhooks.job import DeliveryDeps
from passerelle.webhooks.sender import WebhookSender

if TYPE_CHECKING:
    from passerelle.gateway.agent_terms import AgentTerms
    from passerelle.gateway.duties_proxy import DutiesProxy
    from passerelle.gateway.parts import Parts
    from passerelle.gateway.settings.model import Settings
    from passerelle.peers.registry import PeerRegistry
    from passerelle.peers.reverse.cards import DialInState
    from passerelle.runtime.observability.outages import Outages
    from passerelle.store.store import Store


@frozen
class InstanceWork:
    """What an instance does besides answering requests; nothing is started yet."""

    duties: Duties
    deliveries: Deliveries
    links: StoredLinkFacts
    routing: Routing


async def make_instance_work(
    settings: Settings,
    store: Store,
    parts: Parts,
    peers: PeerRegistry,
    dial_in: DialInState,
    terms: AgentTerms,
    outages: Outages,
    late: DutiesProxy,
) -> InstanceWork:
    """Builds the work of this instance, and binds ``late`` to its duties.

    Raises:
        StoreUnavailable: whether finished sessions may be archived cannot be read.
    """
    deliveries = Deliveries(
        _make_delivery_deps(store, outages, late), parts.links.dead_letters.kinds
    )
    links = _make_links(store, parts, late)
    routing = Routing(
        dial_in,
        parts.writes,
        parts.dispatch,
        parts.inputs,
        late.drives,
        peers.dials_in,
        terms.find_connect_ms,
        late.drop,
    )
    forwarding = _make_forwarding(store, parts, settings, terms, late)
    duties = _make_duties(store, parts, forwarding, deliveries, links, routing, outages, late)
    await _set_retention(duties, settings, store)
    late.bind(duties)
    outages.on_epoch = duties.repair.note_epoch
    return InstanceWork(duties, deliveries, links, routing)


def _make_delivery_deps(store: Store, outages: Outages, late: DutiesProxy) -> DeliveryDeps:
    return DeliveryDeps(
        targets=store.targets,
        due=store.due,
        log=store.log,
        sender=WebhookSender(SystemClock()),
        clock=store.clock,
        chance=lambda: SystemIds().draw(32) / 2**32,
        may_send=late.may_send,
        drop=late.drop,
        wake=late.wake,
        logger=outages.log,
        count=outages.metrics.count_delivery,
        time=outages.metrics.time_delivery,
        timer=time.monotonic,
    )


def _make_links(store: Store, parts: Parts, late: DutiesProxy) -> StoredLinkFacts:
    return StoredLinkFacts(
        store.links,
        store.channels,
        Home(parts.writes),
        Recoveries(parts.writes, store.projections),
        late.drives,
        late.wake,
    )


def _make_forwarding(
    store: Store, parts: Parts, settings: Settings, terms: AgentTerms, late: DutiesProxy
) -> Forwarding:
    devices = parts.links.devices
    reach_finder = Reaching(
        store.presences,
        store.channels,
        devices.subscriptions,
        store.targets,
        read_notifiers(settings.approvals),
        terms.find_principal,
    )
    approvals = settings.approvals
    push_gate = PushGate(
        parts.writes.clock,
        store.bundles,
        store.mutes,
        approvals.pushes_per_minute,
        read_quiet_hours(approvals),
    )
    push_sender = PushSender(devices.web_push, devices.subscriptions)
    attempts = DeliveryAttempts(parts.writes)
    return Forwarding(attempts, reach_finder, push_gate, push_sender, devices.tokens, late.drop)


async def _set_retention(duties: Duties, settings: Settings, store: Store) -> None:
    """Sets how long finished data stays in memory, in the inbox and in the store. Raises StoreUnavailable."""
    sweeps = duties.sweeps
    sweeps.archive.terms = read_memory_terms(settings)
    sweeps.archive.find_obstacle = partial(find_archive_obstacle, settings, store)
    await sweeps.archive.may_archive()
    sweeps.inboxes.keep_ms = settings.retention.inbox_ms
    sweeps.retention.terms = read_forget_terms(settings)


def _make_duties(
    store: Store,
    parts: Parts,
    forwarding: Forwarding,
    deliveries: Deliveries,
    links: StoredLinkFacts,
    routing: Routing,
    outages: Outages,
    late: DutiesProxy,
) -> Duties:
    instance = SystemIds().mint("inst", Shard(0))
    INSTANCE.set(instance)
    deadlines = Deadlines(
        parts.writes,
        parts.actions,
        parts.dispatch,
        parts.inputs,
        parts.retries,
        parts.permissions.granting,
        drop=late.drop,
    )
    return make_duties(
        store,
        parts.writes,
        DutySettings(
            instance=instance,
            clock=time.monotonic,
            on_lost=parts.dispatch.drop,
            adopt=parts.dispatch.adopt,
            handlers=list_handlers(
                parts,
                deadlines,
                forwarding,
                deliveries,
                links,
                routing,
                late.drop,
            ),
            lose_link=links.lose,
            count=outages.metrics.count_duty,
            lose=outages.lose_tail,
            drivers=parts.dispatch,
            note_epoch=outages.note_epoch,
            sweep_counts=SweepCounts(
                outages.metrics.count_archived,
                outages.metrics.count_verified,
                outages.metrics.count_forgotten,
            ),
        ),
        outages.log,
    )
