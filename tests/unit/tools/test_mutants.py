"""A piece that is taken out of a compiled tree is not there when a test runs, and is when it was put back."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

from tools.mutants import Mutant, apply, copy_compiled

if TYPE_CHECKING:
    from pathlib import Path

PIECE = Mutant("a sum", "room/sums.py", "1 + 1", "2 + 2", "")


def run(tree: Path) -> str:
    """The text of a module in a copy of the tree, read in the same second by a process that writes no bytecode."""
    os.utime(tree / PIECE.file, (0, 0))
    command = (sys.executable, "-B", "-c", "import room.sums; print(room.sums.TOTAL)")
    done = subprocess.run(command, cwd=tree, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_a_piece_of_the_same_size_that_is_taken_out_within_a_second_is_noticed(
    tmp_path: Path,
) -> None:
    room = tmp_path / "tree" / "room"
    room.mkdir(parents=True)
    (room / "sums.py").write_text("TOTAL = 1 + 1\n", "utf-8")
    os.utime(room / "sums.py", (0, 0))
    copy = copy_compiled(tmp_path / "tree", tmp_path / "copy")
    assert len([*copy.rglob("*.pyc")]) == 1
    assert run(copy) == "2"
    text = apply(copy, PIECE)
    assert run(copy) == "4"
    (copy / PIECE.file).write_text(text, "utf-8")
    assert run(copy) == "2"
