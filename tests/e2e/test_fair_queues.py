"""Turns that wait for agents at two gateways over one store: callers are served equally."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

from tests.queues.flood import Flood
from tests.queues.site import run_queue_site

pytestmark = pytest.mark.anyio

AGENTS: Final = 2
CALLERS: Final = 6
TURNS: Final = 8


@pytest.mark.requirement("MK-6")
async def test_callers_with_many_early_turns_are_served_like_the_others(
    tmp_path: Path,
) -> None:
    """The short form of ``make queues``."""
    async with run_queue_site(tmp_path, 2, AGENTS, CALLERS) as site:
        flood = Flood(site, TURNS, probes=False)
        await flood.run()
    assert flood.faults == []
    assert flood.served[-1].turns == AGENTS * CALLERS * TURNS
