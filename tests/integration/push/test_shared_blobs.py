"""Large content in a shared blob store: an instance reads what another has stored."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.integration.push.rig import run_rig
from tests.support.engine import Server
from tests.support.scripted_behaviours import BIG_ARTIFACT_CHARS
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio


async def test_instance_with_another_data_directory_reads_the_content_of_the_first(
    engine_server: Server, tmp_path: Path
) -> None:
    one, other, shared = (tmp_path / name for name in ("one", "other", "shared"))
    one.mkdir(mode=0o700)
    async with run_rig(engine_server.url, one, blobs=shared) as rig:
        task = await rig.begin("big")

        async def has_ended() -> bool:
            return "task.completed" in await rig.types(task)

        await wait_until(has_ended, 10, "the task is complete")
        assert not (one / "blobs").exists()
        other.mkdir(mode=0o700)
        shutil.copy2(one / "owner-token", other)
        await rig.restart(data_dir=other)
        answer = await rig.do("GetTask", {"id": task})
        assert str(answer["artifacts"]).count("x" * BIG_ARTIFACT_CHARS) == 1
