"""Builds the queries that look at all owners at once."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from passerelle.control.agent_health import AgentWatch
from passerelle.control.overview import Overviews
from passerelle.control.question_oversight import QuestionOversight
from passerelle.core.commands import GetAction, ListActions
from passerelle.core.oversight_requests import GetAgentHealth, GetOverview
from passerelle.core.read_models.overview import RuntimeOverview

if TYPE_CHECKING:
    from passerelle.control.handlers import Handlers
    from passerelle.delegation.runs.active_runs import ActiveRuns
    from passerelle.gateway.agent_terms import AgentTerms
    from passerelle.gateway.dependencies import Dependencies
    from passerelle.gateway.duties_proxy import DutiesProxy
    from passerelle.gateway.handlers import TaskHandlers
    from passerelle.store.store import Store


def register_oversight(
    handlers: Handlers, deps: Dependencies, tasks: TaskHandlers, runs: ActiveRuns
) -> tuple[Overviews, AgentWatch]:
    """Registers them; those about questions wrap the handlers of their owners."""
    store = deps.store

    def count_driven() -> Counter[str]:
        active = (runs.find(task) for task in runs.list_tasks())
        return Counter(one.run.context.peer for one in active if one is not None)

    overviews = Overviews(
        tasks.records,
        store.list_surveys,
        store.targets,
        tasks.oversight,
        deps.list_callers,
        deps.describe_runtime,
    )
    handlers.on_query(GetOverview, overviews.read)
    questions = QuestionOversight(
        tasks.records.writes, store.projections, tasks.oversight, overviews.list_owners
    )
    handlers.on_query(GetAction, questions.over_one(handlers.queries[GetAction]))
    handlers.on_query(ListActions, questions.over_list(handlers.queries[ListActions]))
    health = AgentWatch(
        deps.agents,
        deps.calls,
        deps.clock,
        count_driven,
        lambda: deps.describe_runtime().instance,
        store.agent_reports,
        deps.list_instances,
    )
    handlers.on_query(GetAgentHealth, health.read)
    return overviews, health


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
