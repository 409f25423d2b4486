"""Builds the queries that look at all owners at once."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from passerelle.control.agent_health import AgentWatch
from passerelle.control.overview import Overviews
from passerelle.control.question_oversight import QuestionOversight
from passerelle.core.commands import GetAction, ListActions
from passerelle.core.oversight_requests import GetAgentHealth, GetOverview

if TYPE_CHECKING:
    from passerelle.control.handlers import Handlers
    from passerelle.delegation.runs.active_runs import ActiveRuns
    from passerelle.gateway.dependencies import Dependencies
    from passerelle.gateway.handlers import TaskHandlers


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
