"""The call about many tasks at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from passerelle.core.principal import AccessScope
from passerelle.core.task.bulk import ChangeTasks, TasksChanged
from passerelle.runtime.common.calls import MethodRow

BULK_ROWS: Final[Sequence[MethodRow]] = (
    MethodRow(
        "change_tasks",
        "Cancel, pause, resume or retry every task that a filter matches, if their number is the expected one",
        (AccessScope.WRITE_TASKS,),
        ChangeTasks,
        lambda given, _: given,
        TasksChanged,
    ),
)
