"""(e) The gateway shuts down cleanly, and a replay of the stored streams equals the snapshots."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from passerelle.demo.checks import wait_for
from passerelle.demo.processes import STOP_WITHIN_S, start

if TYPE_CHECKING:
    from passerelle.demo.stage import Stage

_VERIFY_WITHIN_S: Final = 20.0


async def play(stage: Stage) -> None:
    """Sends SIGTERM, then runs ``passerelle verify``."""
    checks, gateway = stage.checks, stage.gateway
    checks.print_heading("e", "the gateway shuts down, and its streams are replayed")
    clock = asyncio.get_running_loop().time
    began = clock()
    status = await gateway.stop()
    took = f"{clock() - began:.1f}s"
    checks.equal(f"it ends by itself within {STOP_WITHIN_S:.0f} s", status, 0, took=took)
    arguments = ("passerelle", "verify", "--data-dir", str(gateway.data_dir))
    child = start("verify", arguments, stage.folder)
    try:
        await wait_for("passerelle verify ends", child.has_ended, _VERIFY_WITHIN_S)
    finally:
        child.process.kill()
    lines = child.stdout_file.read_text(encoding="utf-8").splitlines()
    status = child.process.wait()
    checks.check("every stored stream replays to its snapshot", status == 0, lines, exit=status)
    for line in lines:
        checks.note(line)
