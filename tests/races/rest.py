"""After the races: checks that every pending row comes to an end.

Two kinds of rows may have a later due time: facts about device connections, which are collected for some time, and
messages with an unknown outcome. Each of them is explained and then made due now, after which it has to disappear. No
other row may be left.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from passerelle.core.task.status import ENDED
from passerelle.delegation.duties.due import VISIBILITY_MS
from tests.chaos.records import open_records
from tests.chaos.store_view import StoreView
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from pathlib import Path

    from passerelle.core.task.record import TaskRecord

_RESTS_S: Final = 25.0
"""Longer than the time after which a missed act is due again."""


@dataclass(slots=True)
class Rest:
    """``hastened`` are the rows that were made due early, ``faults`` those without an explanation."""

    view: StoreView
    tasks: dict[str, TaskRecord]
    hastened: list[str] = field(default_factory=list[str])
    faults: list[str] = field(default_factory=list[str])

    def is_reached(self) -> bool:
        """One check; rows that are due later than a claim would allow are made due now."""
        soon_ms = self.view.read_time() + VISIBILITY_MS
        for row, at_ms in self.view.list_rows().items():
            if at_ms > soon_ms and self._explain(row):
                self.hastened.append(row)
                self.view.hasten(row)
        return not self.view.find_leaks()

    def _explain(self, row: str) -> bool:
        """Whether a row may be due later."""
        kind, owner, rest = (*row.split(":", 2), "")[:3]
        match kind:
            case "link":
                if not self.view.count_unstored(owner, rest):
                    self.faults.append(f"{row} has nothing to tell")
                return True
            case "input":
                task = self.tasks.get(owner)
                if task is None or task.status not in ENDED:
                    self.faults.append(f"{row} belongs to no task that has ended")
                return True
            case _:
                return False


async def await_rest(store_url: str, folder: Path) -> Rest:
    """Waits until nothing is pending; a row that is left then is a fault, named by its key."""
    async with open_records(store_url, folder) as records:
        await records.read()
        tasks = dict(records.tasks)
    rest = Rest(StoreView(store_url), tasks)
    try:
        await wait_until(rest.is_reached, _RESTS_S, "nothing is owed")
    except AssertionError:
        rest.faults += rest.view.find_leaks()
    finally:
        rest.view.close()
    return rest
