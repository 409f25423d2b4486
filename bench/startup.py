"""What a start costs: CPU time of a gateway from the beginning of its process until it is ready, its engine left out.

The data directory is new each time. A start that is not counted compiles the modules, into a folder of the run: what a
checkout had compiled before is no advantage.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from bench.rows import BenchBroken, Bound, Row, Spread
from bench.stage import ROOT
from bench.usage import read_cpu_s
from passerelle.demo.processes import Child, GatewayProcess, launch

_WHAT: Final = "start-up: CPU until it is ready"


@dataclass(frozen=True, slots=True)
class Tree:
    """A checkout with an environment of its own, as ``make`` makes it."""

    root: Path

    @property
    def python(self) -> Path:
        """Its interpreter."""
        return self.root / ".venv" / "bin" / "python"


@dataclass(frozen=True, slots=True)
class Starts:
    """Begins gateways of any tree; what they compile is kept in ``compiled``."""

    compiled: Path

    async def take(self, tree: Tree) -> float:
        """CPU seconds of one start."""
        kept = {"PYTHONPYCACHEPREFIX": str(self.compiled), "PYTHONDONTWRITEBYTECODE": ""}

        def begin(
            name: str,
            arguments: Sequence[str],
            folder: Path,
            environ: Mapping[str, str] | None,
        ) -> Child:
            command = (str(tree.python), "-m", *arguments)
            return launch(name, command, folder, {**(environ or {}), **kept})

        with TemporaryDirectory(prefix="psr-startup-") as name:
            gateway = GatewayProcess(Path(name), begin=begin)
            try:
                await gateway.start()
                if gateway.child is None:
                    raise BenchBroken("the gateway has not been started")
                return read_cpu_s(gateway.child.process.pid)
            finally:
                await gateway.stop()


async def measure_startup(rounds: int, base: Path | None) -> AsyncGenerator[Row]:
    """Rows of the section; with ``base`` the starts of that checkout take turns with ours.

    Raises:
        BenchBroken: ``base`` is no checkout with an environment.
    """
    trees = [Tree(root.absolute()) for root in (ROOT, base) if root is not None]
    for tree in trees:
        if not tree.python.is_file():
            raise BenchBroken(f"{tree.root} has no .venv: run make there first")
    with TemporaryDirectory(prefix="psr-compiled-") as name:
        starts = Starts(Path(name))
        for tree in trees:
            await starts.take(tree)
        taken = [[await starts.take(tree) for tree in trees] for _ in range(rounds)]
    yield Row(_WHAT, Spread.of([ours for ours, *_ in taken]), "s")
    if base is not None:
        ratios = [ours / theirs for ours, theirs in taken]
        yield Row(f"{_WHAT} ÷ that of the base", Spread.of(ratios), "ratio", Bound("at most", 1.03))
