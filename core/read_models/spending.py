"""The cost of a task, alone and with all tasks below it: each task once, whatever edges lead to it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from passerelle.core.task.record import RunCost, TaskRecord
from passerelle.core.wire.record import record

MOST_TASKS: Final = 1_024
"""Tasks of a tree that are added up."""


@record
class SpentAmount:
    """Millionths of ``currency`` (ISO 4217)."""

    currency: str
    amount_micros: int


@record
class SpentSums:
    """Sums over ``tasks`` tasks and those of their attempts with a cost.

    ``untold`` counts the attempts whose agents reported no tokens: the tokens are those of the others.
    """

    tasks: int
    attempts: int
    costs: tuple[SpentAmount, ...] = ()
    input_tokens: int = 0
    output_tokens: int = 0
    untold: int = 0


@record
class TaskSpending:
    """``own`` is the task's, ``tree`` includes all below it; ``partial``: more tasks exist below than were added up."""

    own: SpentSums
    tree: SpentSums
    partial: bool = False


def sum_spending(tasks: Iterable[TaskRecord]) -> SpentSums:
    """The sums over some tasks; a repeated task counts once. Currencies are sorted by name."""
    known = {task.task_id: task for task in tasks}
    costs = [one.cost for task in known.values() for one in task.attempts if one.cost is not None]
    sums: dict[str, int] = {}
    for cost in costs:
        sums[cost.currency] = sums.get(cost.currency, 0) + cost.amount_micros
    return SpentSums(
        tasks=len(known),
        attempts=len(costs),
        costs=tuple(SpentAmount(currency, sums[currency]) for currency in sorted(sums)),
        input_tokens=sum(cost.input_tokens or 0 for cost in costs),
        output_tokens=sum(cost.output_tokens or 0 for cost in costs),
        untold=sum(map(_lacks_tokens, costs)),
    )


def _lacks_tokens(cost: RunCost) -> bool:
    return cost.input_tokens is None and cost.output_tokens is None
