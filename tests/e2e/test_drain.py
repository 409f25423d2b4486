"""An instance is told to end while many devices follow: all of them go on at the other one, with nothing lost."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.draining import Numbers, play_drain
from tests.support.ports import find_free_port

pytestmark = pytest.mark.anyio


@pytest.mark.requirement("CHN-3", "CHN-9", "I3", "I8")
async def test_devices_of_an_instance_that_ends_go_on_at_the_other_with_nothing_lost(
    tmp_path: Path,
) -> None:
    await play_drain(tmp_path, Numbers(following=60, lagging=0))


@pytest.mark.requirement("CHN-4")
async def test_devices_that_take_nothing_hold_up_neither_the_end_nor_the_others(
    tmp_path: Path,
) -> None:
    await play_drain(tmp_path, Numbers(following=20, lagging=20), find_free_port())
