"""Checkouts whose gateways are measured: this one, and another that takes turns with it.

A gateway of either is used through its command line and its API only, never through its modules.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Self, TypeVar

from bench.rows import Bound, MeasurementError, Row, Spread
from passerelle.demo.processes import Child, launch

ROOT: Final = Path(__file__).resolve().parent.parent
_NO_WORSE: Final = Bound("at most", 1.05)
"""The difference between two checkouts of one commit on shared cores."""
_Side = TypeVar("_Side")


@dataclass(frozen=True, slots=True)
class Checkout:
    """A checkout with the environment that ``make`` creates; its processes also get ``environ``."""

    root: Path
    environ: Mapping[str, str] = field(default_factory=dict[str, str])

    @classmethod
    def of(cls, root: Path) -> Self:
        """The checkout at ``root``.

        Raises:
            MeasurementError: it has no environment.
        """
        tree = cls(root.absolute())
        if not tree.python.is_file():
            raise MeasurementError(f"{tree.root} has no .venv: run make there first")
        return tree

    @property
    def python(self) -> Path:
        """Its interpreter."""
        return self.root / ".venv" / "bin" / "python"

    def begin(
        self,
        name: str,
        arguments: Sequence[str],
        folder: Path,
        environ: Mapping[str, str] | None,
    ) -> Child:
        """Starts ``python -m <arguments>`` with its interpreter."""
        command = (str(self.python), "-m", *arguments)
        return launch(name, command, folder, {**(environ or {}), **self.environ})


async def take_turns(
    rounds: int, take: Callable[[_Side], Awaitable[float]], ours: _Side, base: _Side
) -> list[tuple[float, float]]:
    """The measures of both in each round; every second round begins with the base."""
    pairs: list[tuple[float, float]] = []
    for number in range(rounds):
        if number % 2:
            theirs = await take(base)
            pairs.append((await take(ours), theirs))
        else:
            pairs.append((await take(ours), await take(base)))
    return pairs


def compare(what: str, pairs: Sequence[tuple[float, float]], bound: Bound = _NO_WORSE) -> Row:
    """The measure of this checkout ÷ that of the base, in pairs of consecutive rounds."""
    ratios = [ours / base for ours, base in pairs]
    return Row(f"{what} ÷ base", Spread.of(ratios), "ratio", bound)
