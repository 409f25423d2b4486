"""``python -m tools.sizes``: what an installation takes on disk, and an error where it is more than is promised.

``--installed`` is an environment with the wheel, ``--client`` one with the client for Python. Tools to install with do
not count; modules that pip compiles do. The client for browsers has a test of its own (clients/js/test).
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from importlib.metadata import Distribution, distributions
from pathlib import Path
from typing import Final

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

MOST_INSTALLED: Final = 210_000_000
"""With the library of CEL, which is a quarter of it."""
MOST_CLIENT: Final = 3_000_000
"""Beside ``CLIENT_BESIDE`` and what these bring."""
CLIENT_BESIDE: Final = ("httpx", "websockets")
_TOOLS: Final = frozenset({"pip", "setuptools", "wheel"})
_SHOWN: Final = 5


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tools.sizes", description=__doc__)
    parser.add_argument("--installed", type=Path)
    parser.add_argument("--client", type=Path)
    said = parser.parse_args(arguments)
    faults: list[str] = []
    if said.installed:
        sizes = measure(said.installed)
        largest = sorted(sizes.items(), key=lambda one: -one[1])[:_SHOWN]
        detail = ", ".join(f"{name} {size / 1e6:.0f}" for name, size in largest)
        faults += judge("installed", sum(sizes.values()), MOST_INSTALLED, f" ({detail})")
    if said.client:
        faults += judge("client", sum(measure(said.client, CLIENT_BESIDE).values()), MOST_CLIENT)
    for fault in faults:
        print(f"sizes: {fault}", file=sys.stderr)
    return 1 if faults else 0


def measure(environment: Path, beside: Sequence[str] = ()) -> dict[str, int]:
    """Bytes of each distribution of an environment, without those named in ``beside`` and what they ask for.

    Raises:
        LookupError: there is no distribution but tools: this is no environment.
    """
    places = [str(one) for one in environment.glob("lib/python*/site-packages")]
    found = {str(canonicalize_name(one.name)): one for one in distributions(path=places)}
    left_out = _TOOLS | close_over(found, beside)
    sizes = {name: _weigh(one) for name, one in found.items() if name not in left_out}
    if not sizes:
        raise LookupError(f"{environment} has nothing installed")
    return sizes


def close_over(found: Mapping[str, Distribution], names: Sequence[str]) -> set[str]:
    """Names and what they ask for, as far as it is there."""
    seen: set[str] = set()
    waiting = [name for name in names if name in found]
    while waiting:
        name = waiting.pop()
        if name in seen:
            continue
        seen.add(name)
        for text in found[name].requires or []:
            need = Requirement(text)
            other = canonicalize_name(need.name)
            if other in found and (need.marker is None or need.marker.evaluate({"extra": ""})):
                waiting.append(other)
    return seen


def judge(what: str, size: int, most: int, detail: str = "") -> list[str]:
    """Prints a size; a sentence where it is too large."""
    print(f"sizes: {what} {size / 1e6:.1f} MB{detail}")
    return [f"{what} takes {size} bytes, and may take {most}"] if size > most else []


def _weigh(one: Distribution) -> int:
    """Files that it has brought; scripts of ``bin`` count, too."""
    files = (Path(str(one.locate_file(file))) for file in one.files or [])
    return sum(file.stat().st_size for file in files if file.is_file())


if __name__ == "__main__":
    sys.exit(main())
