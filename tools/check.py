"""``python -m tools.check``: everything that is checked without running the product, in one table.

Two steps run at a time; each prints one line, and its output when it failed. ``--fast`` leaves out
the slow ones (types, packaging) and is what a commit hook calls.
"""

import argparse
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BIN = Path(sys.executable).parent
AT_ONCE = 2
PACKAGING = ("tests/unit/test_packaging.py", "tests/unit/client/test_packaging.py")


@dataclass(frozen=True, slots=True)
class Step:
    """One command; the first word is a program of the environment that runs this file."""

    name: str
    command: tuple[str, ...]
    slow: bool = False


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a step ended, and what it said."""

    step: Step
    status: int
    output: str
    took_s: float


def _module(name: str, *arguments: str) -> tuple[str, ...]:
    return ("python", "-m", name, *arguments)


# The slow ones first: they decide how long the whole takes.
STEPS = (
    Step("pyright", ("pyright", "--warnings"), slow=True),
    Step("mypy", ("mypy",), slow=True),
    Step("packaging", _module("pytest", "-q", *PACKAGING), slow=True),
    Step("format", ("ruff", "format", "--check", ".")),
    Step("lint", ("ruff", "check", ".")),
    Step("layers", ("lint-imports", "--no-logo")),
    Step("generated", _module("tools.generate", "--check")),
    Step("links", _module("tools.links")),
    Step("unused", _module("tools.unused")),
    Step("names", _module("tools.names")),
    Step("words", _module("tools.words")),
    Step("lua", _module("tools.lua")),
    Step("ledger", _module("tools.ledger")),
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit status: 0 when every step passed."""
    parser = argparse.ArgumentParser(prog="python -m tools.check", description=__doc__)
    parser.add_argument("--fast", action="store_true", help="without types and packaging")
    fast: bool = parser.parse_args(arguments).fast
    chosen = [step for step in STEPS if not (fast and step.slow)]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        outcomes = list(map(_report, pool.map(run, chosen)))
    failed = [outcome.step.name for outcome in outcomes if outcome.status]
    passed = len(outcomes) - len(failed)
    print(next((o.output.splitlines()[-1] for o in outcomes if o.step.name == "ledger"), ""))
    print(
        f"check: {passed} of {len(outcomes)} passed"
        + (f"; failed: {', '.join(failed)}" if failed else "")
    )
    return 1 if failed else 0


def run(step: Step) -> Outcome:
    """Runs one step to its end; a step that talks to nobody needs no limit of its own."""
    started = time.monotonic()
    done = subprocess.run(
        [str(BIN / step.command[0]), *step.command[1:]],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
        text=True,
    )
    return Outcome(step, done.returncode, done.stdout, time.monotonic() - started)


def _report(outcome: Outcome) -> Outcome:
    word = "failed" if outcome.status else "ok"
    print(f"{outcome.step.name:<10} {word:<6} {outcome.took_s:5.1f} s", flush=True)
    if outcome.status:
        print(outcome.output, flush=True)
    return outcome


if __name__ == "__main__":
    sys.exit(main())
