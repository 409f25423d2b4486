"""The gateway as a process: engine, store, leases, duties, service and edges, started in this order, ended in reverse.

The end has ten seconds: no new work, streams and channels told to go, runs let go of (their leases say so, and others
go on with them), leases released, the engine stopped last. Nothing ends by it but this process (I6).
"""

from __future__ import annotations

import asyncio
import os
import time
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import structlog

from passerelle.channels.hub import Hub, HubSettings
from passerelle.core.errors import EngineFailed
from passerelle.core.ids import Shard
from passerelle.gateway.a2a.edge import make_edge
from passerelle.gateway.agent_terms import AgentTerms
from passerelle.gateway.auth.access import Access
from passerelle.gateway.auth.owner import load_owner_token
from passerelle.gateway.clock import SystemClock, SystemIds
from passerelle.gateway.collector import calm_collector
from passerelle.gateway.control.catalogue import Catalogue
from passerelle.gateway.control.home import Home
from passerelle.gateway.control.linking import EDGE, UNBLOCK
from passerelle.gateway.control.outputs import OUTPUT_ROW
from passerelle.gateway.control.recoveries import Recoveries
from passerelle.gateway.correlation import INSTANCE
from passerelle.gateway.delegation.deadlines import Deadlines
from passerelle.gateway.delegation.patience import Patience
from passerelle.gateway.delegation.sending import ROW as SEND_ROW
from passerelle.gateway.duties.duty_loop import Duties, DutySettings, make_duties
from passerelle.gateway.edges import make_edges
from passerelle.gateway.grpc.opening import open_grpc
from passerelle.gateway.limits.gate import Gate
from passerelle.gateway.limits.limiter import Limiter
from passerelle.gateway.limits.notices import Notices
from passerelle.gateway.limits.spending import Spending
from passerelle.gateway.links import ROW as LINK_ROW
from passerelle.gateway.links import LinkFacts
from passerelle.gateway.metrics import Metrics
from passerelle.gateway.outages import Outages
from passerelle.gateway.outputs.policy import make_policy
from passerelle.gateway.parts import Surroundings, make_service
from passerelle.gateway.peers.registry import PeerRegistry
from passerelle.gateway.reloading import Reloading
from passerelle.gateway.server import Server, bind, stop_on_signals
from passerelle.gateway.server_tls import load_server_tls
from passerelle.gateway.settings_bounds import list_bounds, list_prices, list_quotas
from passerelle.gateway.settings_peers import make_peer_configs
from passerelle.gateway.settings_rules import is_loopback
from passerelle.gateway.settings_source import Sources
from passerelle.gateway.signing.signer import Signer, load_signer
from passerelle.gateway.span_export import open_spans
from passerelle.gateway.taking_over import take_over
from passerelle.gateway.targets.deliveries import ROW as TARGET_ROW
from passerelle.gateway.targets.deliveries import Deliveries
from passerelle.gateway.targets.job import Means
from passerelle.gateway.targets.sender import WebhookSender
from passerelle.gateway.targets.webhooks import load_webhooks
from passerelle.store.data_directory import make_data_directory
from passerelle.store.engine import EmbeddedEngine
from passerelle.store.engine_process import EngineSettings
from passerelle.store.store import Store, StoreSettings

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Coroutine

    from passerelle.core.batch import Incarnation
    from passerelle.core.ports import DueRow
    from passerelle.gateway.control.service import Service
    from passerelle.gateway.server_tls import ServerTls
    from passerelle.gateway.settings import Settings
    from passerelle.gateway.spans import Spans
    from passerelle.gateway.targets.webhooks import Webhooks

_NEWS_S: Final = 0.05
"""How long questions and deliveries may wait that were just stored, so that several are taken up at once."""


@dataclass(frozen=True, slots=True)
class Gateway:
    """A gateway that works; nothing is served yet."""

    service: Service
    store: Store
    hub: Hub
    duties: Duties
    peers: PeerRegistry
    metrics: Metrics
    engine: EmbeddedEngine | None
    gate: Gate
    spending: Spending
    terms: AgentTerms
    links: LinkFacts
    signer: Signer | None = None
    spans: Spans | None = None


async def run_gateway(
    settings: Settings,
    *,
    on_ready: Callable[[str, str | None], None] | None = None,
    sources: Sources | None = None,
) -> None:
    """Serves until SIGTERM or SIGINT; ``on_ready(url, grpc)`` is told when requests are answered.

    With ``sources`` the configuration is read again when its file changes, and on SIGHUP.

    Raises:
        ConfigInvalid: a busy port, an unusable directory or server.
        DirectoryInUse, EngineFailed, StoreUnavailable: the store cannot be had.
    """
    tls = load_server_tls(settings)
    listener = bind(settings.host, settings.port, "https" if tls else "http")
    stop = asyncio.Event()
    try:
        async with open_gateway(settings) as gateway:
            async with aclosing(make_access(settings)) as access:
                reloading = _make_reloading(gateway, access, settings, sources, tls)
                edges = make_edges(gateway, settings, access, lambda: reloading.fault)
                server = Server(
                    edges.site,
                    listener,
                    edges.drain,
                    settings.channels.inbound_bytes,
                    tls.context if tls else None,
                )
                async with open_grpc(settings, edges.face, tls) as port:
                    grpc = None if port is None else f"{settings.host}:{port}"
                    _warn_unencrypted(settings)
                    calm_collector()
                    await _serve(
                        gateway, server, stop, _announce(listener.url, grpc, on_ready), reloading
                    )
            _raise_fault(gateway)
    finally:
        listener.close()


def _make_reloading(
    gateway: Gateway,
    access: Access,
    settings: Settings,
    sources: Sources | None,
    tls: ServerTls | None,
) -> Reloading:
    async def apply(old: Settings, new: Settings) -> None:
        if tls is not None and tls.renew(new.tls):
            structlog.get_logger("passerelle").info("tls.renewed")
        await take_over(gateway, access, old, new)

    known = sources or Sources(environ={}, folder=Path())
    return Reloading(known, settings, apply, gateway.metrics, watches=sources is not None)


async def _serve(
    gateway: Gateway,
    server: Server,
    stop: asyncio.Event,
    announcement: Coroutine[None, None, None],
    reloading: Reloading,
) -> None:
    with stop_on_signals(stop, server.hurry):
        watch = asyncio.create_task(_watch(gateway, stop))
        ready = asyncio.create_task(announcement)
        reload = asyncio.create_task(reloading.run(), name="config")
        try:
            await server.serve(stop)
        finally:
            tasks = (ready, watch, reload)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


@asynccontextmanager
async def open_gateway(settings: Settings) -> AsyncGenerator[Gateway]:
    """Everything behind the edges, started and stopped."""
    signer = load_signer(settings)
    data_dir = make_data_directory(settings.data_dir)
    async with AsyncExitStack() as stack:
        engine = None
        if settings.redis_url is None:
            wanted = EngineSettings(data_dir, settings.engine_path, settings.durability)
            engine = await EmbeddedEngine.start(wanted)
            stack.push_async_callback(engine.stop)
        url = settings.redis_url.get_secret_value() if settings.redis_url else ""
        metrics = Metrics()
        spans = await stack.enter_async_context(open_spans(settings.spans.otlp_endpoint))
        store = await Store.open(
            StoreSettings(
                engine.url if engine else url,
                settings.blob_dir,
                on_batch=metrics.store_batches.observe,
            )
        )
        stack.push_async_callback(store.close)
        log = structlog.get_logger("passerelle")
        outages = Outages(store.log, metrics, log)
        stack.push_async_callback(outages.close)
        jitter = HubSettings(lambda: SystemIds().draw(32) / 2**32)
        hub = await stack.enter_async_context(
            Hub(store.log, store.hints, jitter, on_lost=outages.lose)
        )
        limiter = Limiter(store.limits, SystemIds().mint("inst", Shard(0)), SystemClock())
        await stack.enter_async_context(limiter)
        peers = PeerRegistry(
            make_peer_configs(settings.agents, os.environ),
            SystemClock(),
            limiter,
            metrics.count_peer_call,
            spans,
        )
        stack.push_async_callback(peers.close)
        webhooks = load_webhooks(settings, data_dir, signer, SystemClock(), SystemIds().draw)
        if webhooks.sealer is None:
            log.warning("push.off", reason="redis_url is given and secret_key is not")
        notices = Notices(lambda: Home(service.writes), SystemClock(), metrics.count_refusal)
        spending = Spending(
            limiter,
            SystemClock(),
            list_quotas(settings),
            list_prices(settings),
            notices.tell_blocked,
        )
        terms = AgentTerms(settings)
        service, duties, deliveries, links = _compose(
            settings, store, hub, peers, outages, webhooks, spending, terms
        )
        await duties.start()
        stack.push_async_callback(deliveries.stop)
        stack.push_async_callback(duties.stop)
        stack.push_async_callback(service.dispatch.outputs.close)
        stack.push_async_callback(service.dispatch.drain)
        stack.push_async_callback(notices.drain)
        gate = Gate(limiter, list_bounds(settings), notices.tell_refused)
        yield Gateway(
            service,
            store,
            hub,
            duties,
            peers,
            metrics,
            engine,
            gate,
            spending,
            terms,
            links,
            signer,
            spans,
        )


def _compose(
    settings: Settings,
    store: Store,
    hub: Hub,
    peers: PeerRegistry,
    outages: Outages,
    webhooks: Webhooks,
    spending: Spending,
    terms: AgentTerms,
) -> tuple[Service, Duties, Deliveries, LinkFacts]:
    ids = SystemIds()

    def drives(shard: Shard) -> Incarnation:
        return duties.drives(shard)

    def may_send(shard: Shard) -> bool:
        return duties.may_send(shard)

    async def drop(shard: Shard, row: DueRow) -> bool:
        return await duties.settling.drop_row(shard, row)

    def wake(shard: Shard, within_s: float) -> None:
        duties.due.wake(shard, within_s)

    def tell(shard: Shard, urgent: bool) -> None:  # noqa: FBT001  a callback of the write path
        if urgent:
            duties.wake(shard, _NEWS_S)

    service = make_service(
        Surroundings(
            store=store,
            hub=hub,
            clock=SystemClock(),
            ids=ids,
            find_peer=peers.find,
            retry_policy=terms.find_policy,
            drives=drives,
            may_send=may_send,
            find_tags=terms.find_tags,
            find_rules=terms.find_rules,
            always_task=terms.shows_always,
            correlates=terms.correlates,
            find_acceptance=terms.find_acceptance,
            adapt=terms.adapt,
            patience=Patience(),
            tally=outages.tally,
            news=tell,
            webhooks=webhooks,
            outputs=make_policy(settings.outputs),
            spending=spending,
            message_bounds=settings.requests.bounds(),
            catalogue=Catalogue(
                peers,
                terms.find_tags,
                make_edge(settings),
                settings.public_url,
            ),
            public_url=settings.public_url,
        )
    )
    deadlines = Deadlines(
        service.writes,
        service.actions,
        service.dispatch,
        service.inputs,
        service.retries,
        drop=drop,
    )
    deliveries = Deliveries(
        Means(
            targets=store.targets,
            due=store.due,
            log=store.log,
            sender=WebhookSender(SystemClock()),
            clock=SystemClock(),
            chance=lambda: ids.draw(32) / 2**32,
            may_send=may_send,
            drop=drop,
            wake=wake,
            logger=outages.log,
            count=outages.metrics.count_delivery,
            time=outages.metrics.time_delivery,
            timer=time.monotonic,
        ),
        service.dead_letters.kinds,
    )
    links = LinkFacts(
        store.links,
        store.channels,
        Home(service.writes),
        Recoveries(service.writes, store.log, store.projections),
        drives,
        wake,
    )
    instance = ids.mint("inst", Shard(0))
    INSTANCE.set(instance)
    duties = make_duties(
        store,
        service.writes,
        DutySettings(
            instance=instance,
            clock=time.monotonic,
            on_lost=service.dispatch.drop,
            adopt=service.dispatch.adopt,
            handlers={
                "timeout": deadlines.on_timeout,
                "idle": deadlines.on_idle,
                "expire": deadlines.on_expire,
                "return": deadlines.on_return,
                "cancel": deadlines.on_cancel,
                "input": deadlines.on_input,
                EDGE: lambda _shard, row, _now_ms: service.task_control.linking.finish(row, drop),
                UNBLOCK: lambda _shard, row, _now_ms: service.task_control.linking.unblock(
                    row, drop
                ),
                SEND_ROW: deadlines.on_send,
                OUTPUT_ROW: lambda _shard, row, now_ms: service.outputs.expire(row, now_ms, drop),
                "retry": deadlines.on_retry,
                TARGET_ROW: deliveries.on_due,
                LINK_ROW: links.on_due,
            },
            lose_link=links.lose,
            count=lambda what, outcome: _count(outages.metrics, what, outcome),
        ),
        outages.log,
    )
    return service, duties, deliveries, links


def _count(metrics: Metrics, what: str, outcome: str) -> None:
    if outcome in {"failed", "fault"}:
        metrics.runtime_errors.labels(what).inc()


def make_access(settings: Settings) -> Access:
    """Who may come in, by the settings; the owner's token is made on the first start."""
    if settings.auth == "open":
        return Access(settings, None, SystemClock())
    token = load_owner_token(make_data_directory(settings.data_dir), SystemIds())
    return Access(settings, token.secret, SystemClock())


def _warn_unencrypted(settings: Settings) -> None:
    """Plain text beyond this machine is a mistake, unless a proxy before us ends TLS (A2A 1.0 section 7.1)."""
    is_behind = settings.public_url is not None and settings.public_url.startswith("https://")
    if settings.tls is None and not is_behind and not is_loopback(settings.host):
        structlog.get_logger("passerelle").warning("server.unencrypted", host=settings.host)


async def _announce(
    url: str, grpc: str | None, on_ready: Callable[[str, str | None], None] | None
) -> None:
    if on_ready is not None:
        on_ready(url, grpc)


async def _watch(gateway: Gateway, stop: asyncio.Event) -> None:
    """Ends the process when what it stands on is gone for good: the engine, or the duties."""
    waits = [asyncio.create_task(gateway.duties.wait_failed())]
    if gateway.engine is not None:
        waits.append(asyncio.create_task(_wait_given_up(gateway.engine)))
    try:
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        stop.set()
    finally:
        for wait in waits:
            wait.cancel()


async def _wait_given_up(engine: EmbeddedEngine) -> None:
    await asyncio.shield(engine.failed)


def _raise_fault(gateway: Gateway) -> None:
    engine = gateway.engine
    log = structlog.get_logger("passerelle")
    if engine is not None and engine.failed.done():
        error = engine.failed.result()
        log.error("runtime.error", code=error.code, part="engine")
        raise error
    if gateway.duties.failed is not None:
        log.error("runtime.error", code="duties_crashed", part="duties")
        raise EngineFailed("the duties of this instance have crashed; see the log")
