"""The cost of a start: CPU time of a gateway from the start of its process until it is ready, without its engine.

The data directory is new each time. An uncounted start compiles the modules into a folder of the run: modules that a
checkout had compiled before are no advantage.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from bench.rows import Bound, MeasurementError, Row, Spread
from bench.trees import ROOT, Checkout, compare, take_turns
from bench.usage import read_cpu_s
from passerelle.demo.processes import GatewayProcess

_WHAT: Final = "start-up: CPU until it is ready"


async def measure_startup(rounds: int, base: Checkout | None) -> AsyncGenerator[Row]:
    """Rows of the section; with ``base`` the starts of both checkouts take turns."""
    with TemporaryDirectory(prefix="psr-compiled-") as name:
        kept = {"PYTHONPYCACHEPREFIX": name, "PYTHONDONTWRITEBYTECODE": ""}
        ours = replace(Checkout.of(ROOT), environ=kept)
        await _take(ours)
        if base is None:
            yield Row(_WHAT, Spread.of([await _take(ours) for _ in range(rounds)]), "s")
            return
        base = replace(base, environ=kept)
        await _take(base)
        pairs = await take_turns(rounds, _take, ours, base)
    yield Row(_WHAT, Spread.of([taken for taken, _ in pairs]), "s")
    yield compare(_WHAT, pairs, Bound("at most", 1.03))


async def _take(tree: Checkout) -> float:
    """CPU seconds of one start."""
    with TemporaryDirectory(prefix="psr-startup-") as name:
        gateway = GatewayProcess(Path(name), begin=tree.begin)
        try:
            await gateway.start()
            if gateway.child is None:
                raise MeasurementError("the gateway has not been started")
            return read_cpu_s(gateway.child.process.pid)
        finally:
            await gateway.stop()
