"""The parts that look at everything at once, put together."""

from __future__ import annotations

from typing import TYPE_CHECKING

from passerelle.control.overview import Overviews
from passerelle.core.oversight_requests import GetOverview

if TYPE_CHECKING:
    from passerelle.control.handlers import Handlers
    from passerelle.gateway.dependencies import Dependencies
    from passerelle.gateway.handlers import TaskHandlers


def register_oversight(handlers: Handlers, deps: Dependencies, tasks: TaskHandlers) -> Overviews:
    """Adds them."""
    store = deps.store
    overviews = Overviews(
        tasks.records,
        store.list_surveys,
        store.targets,
        tasks.oversight,
        deps.list_callers,
        deps.describe_runtime,
    )
    handlers.on_query(GetOverview, overviews.read)
    return overviews
