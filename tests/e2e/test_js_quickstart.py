"""The quickstart of the JavaScript client as a reader runs it: the program of its page, in Node, with a gateway."""

from __future__ import annotations

import asyncio
import os
import subprocess
from pathlib import Path

import pytest

from passerelle.demo.processes import run_peers
from tests.e2e.test_guide import read_blocks
from tests.support.javascript import CLIENT
from tests.support.processes import run_gateway

pytestmark = pytest.mark.anyio


async def test_program_of_the_page_gets_a_payment_approved_and_waits_for_its_end(
    tmp_path: Path,
) -> None:
    program, _follow = read_blocks(CLIENT / "README.md", "js")
    (tmp_path / "approve.mjs").write_text(program, "utf-8")
    (tmp_path / "node_modules").mkdir()
    (tmp_path / "node_modules" / "passerelle-channel").symlink_to(CLIENT)
    async with (
        run_peers(("payments",), tmp_path) as peers,
        run_gateway(tmp_path, {"payments": peers["payments"].url}) as gateway,
    ):
        process = await asyncio.create_subprocess_exec(
            *("node", "approve.mjs"),
            cwd=tmp_path,
            env={**os.environ, "PASSERELLE_URL": gateway.url, "PASSERELLE_TOKEN": gateway.token},
            stdout=subprocess.PIPE,
        )
        said, _ = await asyncio.wait_for(process.communicate(), 60)
    assert process.returncode == 0
    title, outcome, status = said.decode().splitlines()
    assert title.startswith("payments asks for permission")
    assert (outcome, status) == ("won", "completed")
