"""The order in which files of several tiers are distributed to the test processes.

A test with processes, servers and leases mostly waits, and a file with few such tests may take a minute; a unit test
computes, and its file takes a second. So files of the waiting tiers come first and mixed, each tier spread over the
whole run, and the unit tier fills the end. No process is left with a long file at the end, and the processors have
work while others wait. Within a tier the order stays random.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Final

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterable

LAST: Final = "unit"


def pytest_configure(config: pytest.Config) -> None:
    """By default xdist distributes files with few tests last, and these take longest."""
    config.option.loadscopereorder = False


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Sorts the files where they are distributed; a run in one process keeps the random order."""
    if hasattr(config, "workerinput"):
        places = spread(item.nodeid.partition("::")[0] for item in items)
        items.sort(key=lambda item: places[item.nodeid.partition("::")[0]])


def spread(files: Iterable[str]) -> dict[str, tuple[bool, float]]:
    """The sort key of each file: its relative position within its tier, such as ``tests/e2e``."""
    tiers = defaultdict[str, list[str]](list)
    for file in dict.fromkeys(files):
        tiers["/".join(file.split("/")[:2])].append(file)
    return {
        file: (tier.endswith(f"/{LAST}"), (place + 0.5) / len(of_tier))
        for tier, of_tier in tiers.items()
        for place, file in enumerate(of_tier)
    }
