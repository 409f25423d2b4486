"""The state of this instance and its store, as far as this process knows it; it sends no request."""

from __future__ import annotations

from typing import TYPE_CHECKING

from passerelle.core.read_models.overview import RuntimeOverview

if TYPE_CHECKING:
    from passerelle.gateway.agent_terms import AgentTerms
    from passerelle.gateway.duties_proxy import DutiesProxy
    from passerelle.store.store import Store


def describe_runtime(store: Store, late: DutiesProxy, terms: AgentTerms) -> RuntimeOverview:
    """Returns the overview without the relay's lag, which needs a request to the store."""
    nodes, keeper = store.nodes.all, late.keeper
    return RuntimeOverview(
        instance=keeper.instance,
        instances=len(keeper.awake),
        shards_led=len(keeper.duties),
        primaries=len(nodes),
        replicated=sum(node.awaits_replicas for node in nodes),
        replicas_missing=store.replicas.are_missing,
        alone=len(store.replicas.alone),
        memory_share=round(store.memory.fullest.share, 4),
        config_fault=terms.fault,
    )
