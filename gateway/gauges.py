"""Gauges that are read at each scrape: runs, duties, agents and their breakers."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final, get_args

from passerelle.runtime.memory.room import MemoryUse

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from passerelle.core.payloads.limit import AgentState
    from passerelle.gateway.assembly import Gateway
    from passerelle.peers.registry import PeerRegistry
    from passerelle.runtime.common.breaker import BreakerMode
    from passerelle.runtime.memory.room import MemoryRoom
    from passerelle.runtime.observability.metrics import Metrics

_MODES: Final[Mapping[BreakerMode, int]] = {"closed": 0, "trial": 1, "open": 2}
_STATES: Final[Mapping[AgentState, int]] = {"active": 0, "paused": 1, "draining": 2}
_NONE, _STALE, _FRESH = 0, 1, 2


def watch(gateway: Gateway) -> None:
    """Connects the gauges of a gateway's metrics to its state."""
    runs, keeper = gateway.parts.dispatch.runs, gateway.duties.keeper
    gateway.metrics.work.runs.set_function(lambda: len(runs.list_tasks()))
    gateway.metrics.work.leases.set_function(lambda: keeper.held)
    gateway.metrics.work.duties.set_function(lambda: len(keeper.duties))
    watch_memory(gateway.metrics, gateway.memory)
    replicas = gateway.store.replicas
    gateway.metrics.store.replicas_missing.set_function(lambda: replicas.are_missing)
    clock = gateway.store.clock
    gateway.metrics.store.clock_skew.set_function(lambda: clock.skew_ms / 1000)
    memory = gateway.store.memory
    gateway.metrics.store.memory_share.set_function(lambda: memory.fullest.share)
    gateway.metrics.store.primaries_alone.set_function(lambda: len(replicas.alone))
    gateway.metrics.store.primaries_at_risk.set_function(lambda: len(replicas.loss_risks))
    gateway.metrics.look(
        watch_agents(gateway.peers, gateway.parts.queues.admission.pauses.find_state)
    )


def watch_memory(metrics: Metrics, room: MemoryRoom) -> None:
    """Shows the memory budget and what is drawn from it."""
    shown = metrics.memory
    shown.budget.set(room.budget.total)
    for kind in get_args(MemoryUse):
        shown.held.labels(kind).set_function(partial(room.held.__getitem__, kind))


def watch_agents(
    peers: PeerRegistry, find_state: Callable[[str], AgentState] = lambda _agent: "active"
) -> Callable[[Metrics], None]:
    """Shows agents and their breakers; an agent removed from the configuration disappears."""

    def read(metrics: Metrics) -> None:
        metrics.peers.agents.clear()
        metrics.peers.breakers.clear()
        metrics.peers.links.clear()
        metrics.peers.paused.clear()
        for name in peers.names:
            card = peers.peek(name)
            known = _NONE if card is None else _STALE if card.stale else _FRESH
            metrics.peers.agents.labels(name).set(known)
            metrics.peers.paused.labels(name).set(_STATES[find_state(name)])
            for interface, mode in peers.list_breakers(name).items():
                metrics.peers.breakers.labels(name, interface).set(_MODES[mode])
        for name in peers.dial_in_names:
            metrics.peers.links.labels(name).set(peers.count_links(name))

    return read
