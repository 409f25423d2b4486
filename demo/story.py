"""The demo scenario: shows what the gateway does, on real processes, and checks each step.

Each part has a letter and its own module. The data directory is temporary; if a check fails, it is kept and its
path printed.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final, TypeAlias

from passerelle.demo import answers, asking, crash, proof, resuming
from passerelle.demo.checks import Checks
from passerelle.demo.stage import PEERS, Stage, set_stage
from passerelle.gateway.server import stop_on_signals

StoryPart: TypeAlias = Callable[[Stage], Awaitable[None]]

PARTS: Final[tuple[StoryPart, ...]] = (
    answers.play,
    resuming.play,
    asking.play,
    crash.play,
    proof.play,
)
LONGEST_S: Final = 120.0
"""Timeout of the whole scenario, in seconds."""


async def run_demo(*, once: bool) -> int:
    """Plays the scenario, or keeps it running until a signal arrives; returns the exit status."""
    folder = Path(tempfile.mkdtemp(prefix="passerelle-demo-"))
    checks = Checks()
    try:
        await (_play(folder, checks) if once else _stay(folder, checks))
    except Exception as error:  # noqa: BLE001  any failure ends the demo
        print(f"\ndemo: failed after {checks.passed} checks: {str(error) or type(error).__name__}")
        print(f"demo: its data and logs are kept in {folder}", flush=True)
        return 1
    shutil.rmtree(folder)
    if once:
        print(f"\ndemo: {checks.passed} checks passed", flush=True)
    return 0


async def _play(folder: Path, checks: Checks) -> None:
    async with asyncio.timeout(LONGEST_S), set_stage(folder, checks) as stage:
        for play in PARTS:
            await play(stage)


async def _stay(folder: Path, checks: Checks) -> None:
    """Runs gateway and agents in the foreground."""
    stop = asyncio.Event()
    with stop_on_signals(stop):
        async with set_stage(folder, checks) as stage:
            _introduce(stage)
            await stop.wait()


def _introduce(stage: Stage) -> None:
    url, token = stage.gateway.url, stage.gateway.token
    print(f"passerelle at {url}, data and logs in {stage.folder}")
    for name in PEERS:
        print(f"  agent {name:<9} {stage.find_agent(name)}   (itself: {stage.peers[name].url})")
    print(f"  owner token     {token}")
    body = (
        '{"jsonrpc":"2.0","id":1,"method":"SendMessage","params":{"message":'
        '{"messageId":"m1","role":"ROLE_USER","parts":[{"text":"hello"}]}}}'
    )
    print("try:")
    print(f"  curl -s {stage.find_agent('echo')} -H 'Authorization: Bearer {token}' \\")
    print("    -H 'A2A-Version: 1.0' -H 'Content-Type: application/json' \\")
    print(f"    -d '{body}'")
    print("Ctrl-C ends it and removes the data.", flush=True)
