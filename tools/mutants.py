"""``python -m tools.mutants``: takes what is essential out of the code, piece by piece, and wants a test to go red.

A test that stays green without the thing that it is there for proves nothing. Rows stand in ``tests/mutants/*.toml``.
Each is applied to a copy of the tree, and its named test is run there; the same tests are run on an unchanged copy
beside that, and must be green. Most of the time of a test is its start, so there is a copy for each processor.
"""

from __future__ import annotations

import compileall
import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from py_compile import PycInvalidationMode
from queue import SimpleQueue
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
ROWS: Final = ROOT / "tests" / "mutants"
_LIMIT_S: Final = 120
_FAILED: Final = 1
"""What pytest answers where a test is red; anything above means that nothing was proved."""
_LEFT_OUT: Final = shutil.ignore_patterns(
    ".git", ".venv", "node_modules", "__pycache__", ".*_cache", ".hypothesis"
)


@dataclass(frozen=True, slots=True)
class Mutant:
    """One piece taken out of one file, and the test that has to notice."""

    name: str
    file: str
    before: str
    after: str
    test: str


def main() -> int:
    """Returns the exit status: 0 when every mutant is noticed."""
    mutants = [mutant for path in sorted(ROWS.glob("*.toml")) for mutant in read_mutants(path)]
    faults = [fault for mutant in mutants if (fault := check_place(ROOT, mutant))]
    if not faults:
        with tempfile.TemporaryDirectory(prefix="psr-mutants-") as name:
            faults = play(Path(name), mutants)
    for fault in faults:
        print(f"mutants: {fault}", file=sys.stderr)
    print(f"mutants: {len(mutants) - len(faults)} of {len(mutants)} noticed")
    return 1 if faults else 0


def read_mutants(path: Path) -> list[Mutant]:
    """The rows of one file."""
    rows = tomllib.loads(path.read_text("utf-8"))["mutant"]
    return [Mutant(**row) for row in rows]


def check_place(root: Path, mutant: Mutant) -> str | None:
    """What is wrong with a row: code moves on, and a row that names nothing would be noticed by nobody."""
    found = (root / mutant.file).read_text("utf-8").count(mutant.before)
    return None if found == 1 else f"{mutant.name}: stands {found} times in {mutant.file}, not once"


def apply(root: Path, mutant: Mutant) -> str:
    """Writes a mutant into a tree, and returns the text that stood there."""
    path = root / mutant.file
    text = path.read_text("utf-8")
    path.write_text(text.replace(mutant.before, mutant.after), "utf-8")
    return text


def play(folder: Path, mutants: list[Mutant]) -> list[str]:
    """A sentence for each mutant that is not noticed, in copies of this tree."""
    trees: SimpleQueue[Path] = SimpleQueue()
    compiled = copy_compiled(ROOT, folder / "tree-0")
    trees.put(compiled)
    for number in range(1, os.cpu_count() or 1):
        trees.put(shutil.copytree(compiled, folder / f"tree-{number}", symlinks=True))
    tests = [*dict.fromkeys(mutant.test for mutant in mutants)]
    with ThreadPoolExecutor(trees.qsize()) as pool:
        unchanged = pool.submit(_prove_green, trees, tests)
        found = [pool.submit(_prove_red, trees, mutant) for mutant in mutants]
        return [fault for one in (unchanged, *found) if (fault := one.result())]


def copy_compiled(root: Path, tree: Path) -> Path:
    """Copies a tree and compiles its modules, each of which is known by a hash of its source.

    By the second and the size of its source a piece that is taken out or put back may be taken for what stood there.
    """
    shutil.copytree(root, tree, symlinks=True, ignore=_LEFT_OUT)
    compileall.compile_dir(tree, quiet=1, invalidation_mode=PycInvalidationMode.CHECKED_HASH)
    return tree


def _prove_green(trees: SimpleQueue[Path], tests: list[str]) -> str | None:
    with _borrow(trees) as tree:
        status, told = run_tests(tree, tests)
    return f"the tests are red by themselves: {told}" if status else None


def _prove_red(trees: SimpleQueue[Path], mutant: Mutant) -> str | None:
    with _borrow(trees) as tree:
        text = apply(tree, mutant)
        status, told = run_tests(tree, [mutant.test])
        (tree / mutant.file).write_text(text, "utf-8")
    print(f"  {'noticed' if status == _FAILED else 'MISSED ':8} {mutant.name}", flush=True)
    return None if status == _FAILED else f"{mutant.name}: {mutant.test} says {told}"


@contextmanager
def _borrow(trees: SimpleQueue[Path]) -> Generator[Path]:
    tree = trees.get()
    try:
        yield tree
    finally:
        trees.put(tree)


def run_tests(tree: Path, tests: list[str]) -> tuple[int, str]:
    """The exit status of pytest in a tree, and the line of its first failure, or its last line."""
    # Loading schemathesis is half of the start of a test that has no use for it.
    left_out = ("-p", "no:cacheprovider", "-p", "no:schemathesis")
    command = (sys.executable, "-m", "pytest", "-q", "-x", "-n", "0", *left_out)
    # The tree's own packages come before those of the environment that this runs in.
    environ = {
        **os.environ,
        "PYTHONPATH": f"{tree / 'src'}{os.pathsep}{tree}",
        # What is compiled stays that of the unchanged tree.
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    try:
        done = subprocess.run(
            [*command, *tests],
            cwd=tree,
            env=environ,
            capture_output=True,
            text=True,
            timeout=_LIMIT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return _FAILED, f"nothing within {_LIMIT_S} s"
    lines = (done.stdout or done.stderr).strip().splitlines() or ["nothing"]
    failures = (line for line in lines if line.startswith(("FAILED", "ERROR")))
    return done.returncode, next(failures, lines[-1])


if __name__ == "__main__":
    raise SystemExit(main())
