"""In which order the files of several tiers are given out to the processes that run them side by side.

A test with processes, servers and leases waits most of its time, and a file of few such tests may take a minute; one of
the unit tier computes, and its file takes a second. So files of the tiers that wait come first and mixed, each tier
spread over all of that time, and the unit tier fills the end: nobody is left alone with a long file, and the processors
have work while others wait. Within a tier the order stays the drawn one.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Final

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterable

LAST: Final = "unit"


def pytest_configure(config: pytest.Config) -> None:
    """By itself xdist gives out files with few tests last, which are the longest."""
    config.option.loadscopereorder = False


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Puts the files in order where they are given out; a run in one process keeps the order that was drawn."""
    if hasattr(config, "workerinput"):
        places = spread(item.nodeid.partition("::")[0] for item in items)
        items.sort(key=lambda item: places[item.nodeid.partition("::")[0]])


def spread(files: Iterable[str]) -> dict[str, tuple[bool, float]]:
    """What to sort each file by: its share of the way through its tier, such as ``tests/e2e``."""
    tiers = defaultdict[str, list[str]](list)
    for file in dict.fromkeys(files):
        tiers["/".join(file.split("/")[:2])].append(file)
    return {
        file: (tier.endswith(f"/{LAST}"), (place + 0.5) / len(of_tier))
        for tier, of_tier in tiers.items()
        for place, file in enumerate(of_tier)
    }
