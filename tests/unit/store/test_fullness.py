"""How full a store is: a state that begins at a share ends a little below it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest

from passerelle.core.errors import StoreUnavailable
from passerelle.store.fullness import Fullness, MemoryReport, StoreMemory, judge, read_memory_report
from passerelle.store.nodes import Nodes


@pytest.mark.parametrize(
    ("before", "share", "after"),
    [
        (Fullness.NORMAL, 0.0, Fullness.NORMAL),
        (Fullness.NORMAL, 0.799, Fullness.NORMAL),
        (Fullness.NORMAL, 0.80, Fullness.LOW),
        (Fullness.NORMAL, 0.90, Fullness.FULL),
        (Fullness.LOW, 0.79, Fullness.LOW),
        (Fullness.LOW, 0.779, Fullness.NORMAL),
        (Fullness.LOW, 0.899, Fullness.LOW),
        (Fullness.LOW, 0.90, Fullness.FULL),
        (Fullness.FULL, 0.89, Fullness.FULL),
        (Fullness.FULL, 0.879, Fullness.LOW),
        (Fullness.FULL, 0.79, Fullness.LOW),
        (Fullness.FULL, 0.5, Fullness.NORMAL),
        (Fullness.FULL, 1.2, Fullness.FULL),
    ],
)
def test_share_means_something_after_what_it_meant(
    before: Fullness, share: float, after: Fullness
) -> None:
    assert judge(before, share) is after


def test_report_is_what_counts_for_the_limit() -> None:
    said = {"used_memory": "1000", "maxmemory": "2000", "mem_not_counted_for_evict": "100"}
    assert read_memory_report(said) == MemoryReport(900, 2000)
    assert read_memory_report(said).share == 0.45
    assert read_memory_report({}) == MemoryReport(0, 0), "the server does not say"
    assert read_memory_report({"used_memory": "1000", "maxmemory": "0"}).share == 0.0


def make_memory(*reports: MemoryReport) -> tuple[StoreMemory, list[SimpleNamespace]]:
    nodes = [SimpleNamespace(memory=report) for report in reports]
    return StoreMemory(cast("Nodes", SimpleNamespace(all=nodes))), nodes


def test_fullest_primary_decides_and_new_tasks_come_again_when_it_has_room() -> None:
    memory, (one, _, _) = make_memory(
        MemoryReport(95, 100), MemoryReport(10, 100), MemoryReport(10**9, 0)
    )
    memory.check_room()
    assert memory.look() is Fullness.FULL
    assert memory.fullest == MemoryReport(95, 100)
    with pytest.raises(StoreUnavailable) as refused:
        memory.check_room()
    assert (refused.value.wrote, refused.value.retry_after_s) == ("no", 30)
    one.memory = MemoryReport(89, 100)
    assert memory.look() is Fullness.FULL
    one.memory = MemoryReport(87, 100)
    assert memory.look() is Fullness.LOW
    memory.check_room()
