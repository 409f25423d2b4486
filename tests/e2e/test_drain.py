"""An instance is drained while many devices follow: all continue at the other one without loss."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.draining import Numbers, play_drain
from tests.support.ports import find_free_port

pytestmark = pytest.mark.anyio


@pytest.mark.requirement("CHN-3", "CHN-9", "I3", "I8")
async def test_devices_of_a_drained_instance_continue_at_the_other_without_loss(
    tmp_path: Path,
) -> None:
    await play_drain(tmp_path, Numbers(following=60, lagging=0))


@pytest.mark.requirement("CHN-4")
async def test_stalled_devices_delay_neither_the_drain_nor_the_others(
    tmp_path: Path,
) -> None:
    await play_drain(tmp_path, Numbers(following=20, lagging=20), find_free_port())
