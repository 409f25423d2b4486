"""What stands at the moment of a scrape: runs, duties, agents and their breakers. Nothing is counted for it before."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from passerelle.gateway.assembly import Gateway
    from passerelle.gateway.metrics import Metrics
    from passerelle.gateway.peers.breaker import Mode
    from passerelle.gateway.peers.registry import PeerRegistry

_MODES: Final[Mapping[Mode, int]] = {"closed": 0, "trial": 1, "open": 2}
_NONE, _STALE, _FRESH = 0, 1, 2


def watch(gateway: Gateway) -> None:
    """Lets the metrics of a gateway show what stands in it."""
    runs, keeper = gateway.service.dispatch.runs, gateway.duties.keeper
    gateway.metrics.work.runs.set_function(lambda: len(runs.list_tasks()))
    gateway.metrics.work.leases.set_function(lambda: keeper.held)
    gateway.metrics.work.duties.set_function(lambda: len(keeper.duties))
    replicas = gateway.store.replicas
    gateway.metrics.store.replicas_missing.set_function(lambda: replicas.are_missing)
    gateway.metrics.look(watch_agents(gateway.peers))


def watch_agents(peers: PeerRegistry) -> Callable[[Metrics], None]:
    """Shows agents and their breakers; one that is configured no more shows no more."""

    def read(metrics: Metrics) -> None:
        metrics.peers.agents.clear()
        metrics.peers.breakers.clear()
        metrics.peers.links.clear()
        for name in peers.names:
            card = peers.peek(name)
            known = _NONE if card is None else _STALE if card.stale else _FRESH
            metrics.peers.agents.labels(name).set(known)
            for interface, mode in peers.list_breakers(name).items():
                metrics.peers.breakers.labels(name, interface).set(_MODES[mode])
        for name in peers.dialling:
            metrics.peers.links.labels(name).set(peers.count_links(name))

    return read
