"""Builds a gateway from its settings: starts the parts in the order of their dependencies, stops them in reverse."""

from __future__ import annotations

import asyncio
import os
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import field, replace
from functools import partial
from typing import TYPE_CHECKING

import structlog

from passerelle.channels.hub import Hub, HubSettings
from passerelle.channels.links import StoredLinkFacts
from passerelle.channels.origins import WebOrigins
from passerelle.control.catalogue import Catalogue
from passerelle.core.errors import ConfigInvalid
from passerelle.core.frozen import frozen
from passerelle.core.ids import Shard
from passerelle.delegation.duties.duty_loop import Duties
from passerelle.delegation.runs.follow_strategy import Timeouts
from passerelle.delegation.runs.outputs import make_policy
from passerelle.delegation.runs.remote_drivers import InstanceSignals
from passerelle.gateway.a2a.cards import make_edge
from passerelle.gateway.agent_terms import AgentTerms
from passerelle.gateway.dependencies import Dependencies
from passerelle.gateway.duties_proxy import DutiesProxy
from passerelle.gateway.instance_work import make_instance_work
from passerelle.gateway.oversight import describe_runtime
from passerelle.gateway.parts import Parts, make_parts
from passerelle.gateway.reverse.host import open_host
from passerelle.gateway.settings.approvals import read_notifiers
from passerelle.gateway.settings.section import read_output_terms
from passerelle.gateway.settings.values import (
    EVIDENCE_KEY,
    list_bounds,
    list_prices,
    list_quotas,
    load_evidence_signer,
    load_signer,
    load_webhooks,
    make_peer_configs,
)
from passerelle.gateway.span_export import open_spans
from passerelle.gateway.store_setup import fit_engine, open_store
from passerelle.peers.registry import PeerRegistry
from passerelle.peers.reverse.cards import DialInState
from passerelle.peers.reverse.local import LocalLinks
from passerelle.permission_bridge.devices.pairing import find_gateway_address
from passerelle.permission_bridge.devices.web_push import TIMEOUT_S as PUSH_TIMEOUT_S
from passerelle.permission_bridge.governing.rulebook import RuleFollowing
from passerelle.runtime.common.clock import SystemClock, SystemIds
from passerelle.runtime.common.clock_skew import SkewWatch
from passerelle.runtime.common.memory_watch import MemoryWatch
from passerelle.runtime.common.replica_watch import DurabilityWatch, ReplicaWatch
from passerelle.runtime.common.signatures import Signer
from passerelle.runtime.limits.costs import Spending
from passerelle.runtime.limits.gate import Gate
from passerelle.runtime.limits.limiter import Limiter
from passerelle.runtime.limits.notices import Notices
from passerelle.runtime.limits.pauses import AgentPauses
from passerelle.runtime.memory.budget import Budget
from passerelle.runtime.memory.room import MemoryRoom
from passerelle.runtime.observability.call_window import CallWindow
from passerelle.runtime.observability.metrics import Metrics
from passerelle.runtime.observability.outages import Outages
from passerelle.runtime.records.contents import Contents
from passerelle.runtime.records.packet_reads import PacketReads
from passerelle.runtime.records.places import Home
from passerelle.runtime.records.row_reads import RowReads
from passerelle.runtime.records.withheld import make_withholding
from passerelle.store.data_directory import make_data_directory
from passerelle.store.engine import EmbeddedEngine
from passerelle.store.engine_process import EngineSettings
from passerelle.store.fullness import Fullness
from passerelle.webhooks.sender import WebhookSender

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator
    from contextlib import AbstractAsyncContextManager
    from pathlib import Path

    from passerelle.gateway.instance_work import InstanceWork
    from passerelle.gateway.reverse.host import Host
    from passerelle.gateway.settings.model import Settings
    from passerelle.runtime.memory.budget import MemoryShortage
    from passerelle.runtime.memory.room import MemoryUse, RoomOutcome
    from passerelle.runtime.observability.spans import Spans
    from passerelle.store.store import Store
    from passerelle.webhooks.webhooks import Webhooks


@frozen
class Gateway:
    """A running gateway without its edges; it serves no requests yet."""

    parts: Parts
    store: Store
    hub: Hub
    duties: Duties
    peers: PeerRegistry
    metrics: Metrics
    engine: EmbeddedEngine | None
    gate: Gate
    spending: Spending
    terms: AgentTerms
    links: StoredLinkFacts
    signer: Signer | None
    spans: Spans | None
    host: Host | None
    memory: MemoryRoom
    origins: WebOrigins = field(default_factory=WebOrigins)


@asynccontextmanager
async def open_gateway(settings: Settings) -> AsyncGenerator[Gateway]:
    """Starts everything behind the edges, and stops it when the block ends."""
    signer = load_signer(settings)
    data_dir = make_data_directory(settings.data_dir)
    async with AsyncExitStack() as stack:
        metrics = Metrics()
        engine = await _start_engine(stack, settings, data_dir)
        store = await _open_store(stack, settings, engine, metrics)
        spans = await stack.enter_async_context(open_spans(settings.spans.otlp_endpoint))
        outages = Outages(store.log, metrics, structlog.get_logger("passerelle"))
        stack.push_async_callback(outages.close)
        store.blob_failures.tell = outages.count_content_failure
        await stack.enter_async_context(_watch_store(store, outages))
        hub = await stack.enter_async_context(_make_hub(store, outages))
        limiter = Limiter(store.limits, SystemIds().mint("inst", Shard(0)), store.clock)
        await stack.enter_async_context(limiter)
        dial_in = DialInState(store.agents, LocalLinks())
        memory = _make_memory(settings, outages, metrics)
        peers = _make_peers(settings, limiter, metrics, spans, dial_in, memory)
        stack.push_async_callback(peers.close)
        window = CallWindow(metrics, SystemClock(), peers.list_cards)
        await stack.enter_async_context(window.follow())
        notices = Notices(lambda: Home(parts.writes), store.clock, metrics.count_refusal)
        quotas, prices = list_quotas(settings), list_prices(settings)
        spending = Spending(limiter, store.clock, quotas, prices, notices.record_blocked)
        terms, late = AgentTerms(settings, Timeouts()), DutiesProxy()
        pushes = WebhookSender(SystemClock(), timeout_s=PUSH_TIMEOUT_S)
        stack.push_async_callback(pushes.close)
        parts = make_parts(
            replace(
                _list_dependencies(settings, store, hub, peers, outages, spending, terms, late),
                agents=peers,
                calls=window,
                time_decision=metrics.time_decision,
                push_sender=pushes,
                evidence_signer=_load_evidence_signer(data_dir, signer, outages),
            ),
            _load_webhooks(settings, data_dir, signer, outages),
        )
        await _follow_others(stack, parts, metrics, outages)
        work = await make_instance_work(
            settings, store, parts, peers, dial_in, terms, outages, late
        )
        await _start_work(stack, work, store, parts, peers, outages)
        stack.push_async_callback(notices.drain)
        instance = work.duties.keeper.instance
        host = await stack.enter_async_context(open_host(peers, work.routing, instance))
        bounds, note_caller = list_bounds(settings), parts.dispatch.note_caller
        gate = Gate(limiter, bounds, notices.record_refused, note_caller)
        yield Gateway(
            parts,
            store,
            hub,
            work.duties,
            peers,
            metrics,
            engine,
            gate,
            spending,
            terms,
            work.links,
            signer,
            spans,
            host,
            memory,
        )


async def _start_work(
    stack: AsyncExitStack,
    work: InstanceWork,
    store: Store,
    parts: Parts,
    peers: PeerRegistry,
    outages: Outages,
) -> None:
    """Starts the duties, loads the waiting turns of each agent, and listens to the other instances.

    At the end the runs drain first, while the duties still extend their leases.
    """
    duties, dispatch = work.duties, parts.dispatch
    signals = InstanceSignals(store.nudges, parts.writes, duties.keeper.instance, outages.log)
    dispatch.connect(work.routing, signals, duties.repair.find_loss)
    await duties.start()
    await parts.queues.look(peers.names)
    await stack.enter_async_context(parts.agent_watch.follow(outages.log))
    dispatch.detach(signals.listen(dispatch.nudge_local))
    stack.push_async_callback(work.deliveries.stop)
    stack.push_async_callback(duties.stop)
    stack.push_async_callback(dispatch.outputs.close)
    stack.push_async_callback(dispatch.consulting.hooks.caller.close)
    stack.push_async_callback(dispatch.drain)


async def _follow_others(
    stack: AsyncExitStack, parts: Parts, metrics: Metrics, outages: Outages
) -> None:
    """Follows what other instances change: the rules, and which agents are paused."""
    following = RuleFollowing(
        parts.permissions.editing, outages.log, metrics.config.skipped_rules.set
    )
    await stack.enter_async_context(following.follow())
    await stack.enter_async_context(parts.pausing.follow(outages.log))


async def _start_engine(
    stack: AsyncExitStack, settings: Settings, data_dir: Path
) -> EmbeddedEngine | None:
    if settings.redis_url is not None:
        return None
    wanted = EngineSettings(data_dir, settings.engine_path, settings.durability)
    engine = await EmbeddedEngine.start(wanted)
    stack.push_async_callback(engine.stop)
    await fit_engine(engine, settings, structlog.get_logger("passerelle"))
    return engine


async def _open_store(
    stack: AsyncExitStack, settings: Settings, engine: EmbeddedEngine | None, metrics: Metrics
) -> Store:
    url = settings.redis_url.get_secret_value() if settings.redis_url else ""
    log = structlog.get_logger("passerelle")
    batches = metrics.store.batches.counts
    store = await open_store(settings, engine.url if engine else url, batches, log)
    stack.push_async_callback(store.close)
    await store.owner_keys.prepare()
    return store


def _watch_store(store: Store, outages: Outages) -> AbstractAsyncContextManager[None]:
    skew, memory = SkewWatch(store.clock, outages.log), MemoryWatch(store.memory, outages.log)
    durability = DurabilityWatch(store.replicas, outages.log)

    def after() -> None:
        skew.look()
        memory.look()
        durability.look()

    def is_urgent() -> bool:
        return store.memory.fullness is not Fullness.NORMAL

    return ReplicaWatch(store.replicas, outages.log, after, is_urgent).watch()


def _make_hub(store: Store, outages: Outages) -> Hub:
    jitter = HubSettings(lambda: SystemIds().draw(32) / 2**32)
    withholding = make_withholding(None, store.blobs, SystemIds().draw)
    reads = RowReads(PacketReads(Contents(store.log, store.blobs, withholding)))
    return Hub(reads, store.hints, jitter, on_lost=outages.lose)


def _make_peers(
    settings: Settings,
    limiter: Limiter,
    metrics: Metrics,
    spans: Spans | None,
    dial_in: DialInState,
    memory: MemoryRoom,
) -> PeerRegistry:
    return PeerRegistry(
        make_peer_configs(settings.agents, os.environ),
        SystemClock(),
        limiter,
        metrics.count_peer_call,
        spans,
        dial_in,
        memory,
    )


def _make_memory(settings: Settings, outages: Outages, metrics: Metrics) -> MemoryRoom:
    def log_shortage(
        kind: MemoryUse, holder: str, lack: MemoryShortage, outcome: RoomOutcome
    ) -> None:
        outages.log.warning(
            "memory.short", of=kind, holder=holder, lack=lack.value, outcome=outcome
        )

    def count(kind: MemoryUse, outcome: RoomOutcome) -> None:
        metrics.memory.lacks.counts[kind, outcome] += 1

    later = asyncio.get_running_loop().call_later
    return MemoryRoom(Budget(settings.memory.find_budget()), log_shortage, count, later)


def _list_dependencies(
    settings: Settings,
    store: Store,
    hub: Hub,
    peers: PeerRegistry,
    outages: Outages,
    spending: Spending,
    terms: AgentTerms,
    late: DutiesProxy,
) -> Dependencies:
    pauses = AgentPauses()
    return Dependencies(
        store=store,
        hub=hub,
        clock=store.clock,
        shard_ms=store.clock.read_ms,
        ids=SystemIds(),
        find_peer=peers.find,
        drives=late.drives,
        regain=late.regain,
        content_bytes=settings.memory.find_budget() // 2,
        find_sender=late.find_sender,
        find_terms=terms.find,
        find_rules=terms.rulebook.find_rules,
        rulebook=terms.rulebook,
        list_callers=terms.list_callers,
        timeouts=terms.timeouts,
        tally=outages.tally,
        wake_duties=late.wake_duties,
        on_feed_snapshot=late.on_feed_snapshot,
        wake_relay=late.wake_relay,
        outputs=make_policy(read_output_terms(settings.outputs)),
        spending=spending,
        message_bounds=settings.requests.bounds(),
        describe_capabilities=terms.describe_capabilities,
        describe_runtime=partial(describe_runtime, store, late, terms),
        list_instances=lambda: late.keeper.awake,
        catalogue=Catalogue(
            peers,
            terms.find_tags,
            make_edge(settings),
            settings.public_url,
            pauses.find_state,
        ),
        pauses=pauses,
        public_url=settings.public_url,
        push_contact=settings.approvals.push_contact,
        buttons=settings.approvals.buttons,
        notifiers=read_notifiers(settings.approvals),
        signatures=settings.approvals.signatures,
        find_principal=terms.find_principal,
        find_gateway_address=partial(
            find_gateway_address,
            _find_own_url(settings),
            settings.tls.cert if settings.tls else None,
        ),
    )


def _find_own_url(settings: Settings) -> str:
    scheme = "https" if settings.tls else "http"
    return settings.public_url or f"{scheme}://{settings.host}:{settings.port}"


def _load_webhooks(
    settings: Settings, data_dir: Path, signer: Signer | None, outages: Outages
) -> Webhooks:
    webhooks = load_webhooks(settings, data_dir, signer, SystemClock(), SystemIds().draw)
    if webhooks.sealer is None:
        outages.log.warning("push.off", reason="redis_url is set and secret_key is not")
    return webhooks


def _load_evidence_signer(data_dir: Path, signer: Signer | None, outages: Outages) -> Signer:
    """Loads the signer of evidence. Returns one without keys, which signs nothing, where no key can be created."""
    try:
        return load_evidence_signer(data_dir, signer)
    except ConfigInvalid as error:
        if (data_dir / EVIDENCE_KEY).exists():
            raise
        outages.log.warning("evidence.off", reason=error.message)
        return Signer(())
