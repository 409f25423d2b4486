"""After the races: what is still owed, and that all of it comes to an end.

Two kinds of rows may stand there with a time of their own: facts about device links, which are told together some time
after they came up, and further messages of which nobody heard in time whether they arrived. Each of them is explained,
and then hastened: its time comes now, and it has to go. Nothing else may be left.
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
"""More than the time in which an act that was missed comes due again."""


@dataclass(slots=True)
class Rest:
    """``hastened`` are the rows that were brought forward, ``faults`` those that nothing explains."""

    view: StoreView
    tasks: dict[str, TaskRecord]
    hastened: list[str] = field(default_factory=list[str])
    faults: list[str] = field(default_factory=list[str])

    def is_reached(self) -> bool:
        """One look; rows whose time is later than a claim would put it are brought forward."""
        soon_ms = self.view.read_time() + VISIBILITY_MS
        for row, at_ms in self.view.list_rows().items():
            if at_ms > soon_ms and self._explain(row):
                self.hastened.append(row)
                self.view.hasten(row)
        return not self.view.find_leaks()

    def _explain(self, row: str) -> bool:
        """Whether a row may wait for a later time."""
        kind, owner, rest = (*row.split(":", 2), "")[:3]
        match kind:
            case "link":
                if not self.view.count_untold(owner, rest):
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
    """Until nothing is owed any more; what is left then is a fault, each row by its name."""
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
