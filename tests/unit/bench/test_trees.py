"""Other checkouts: what is asked of them, and what a comparison with one says."""

import sys
from pathlib import Path

import pytest

from bench.rows import MeasurementError
from bench.trees import Checkout, compare, take_turns


def test_a_checkout_without_an_environment_is_refused(tmp_path: Path) -> None:
    with pytest.raises(MeasurementError, match=r"has no \.venv: run make there first"):
        Checkout.of(tmp_path)


def test_a_process_of_a_tree_runs_on_its_interpreter_with_its_environment(tmp_path: Path) -> None:
    tree = Checkout(tmp_path, {"KEPT": "here"})
    tree.python.parent.mkdir(parents=True)
    tree.python.write_text('#!/bin/sh\necho "$1 $2 $KEPT $GIVEN"\n')
    tree.python.chmod(0o700)
    assert Path(sys.executable) != tree.python

    child = tree.begin("one", ("passerelle",), tmp_path, {"GIVEN": "there", "KEPT": "lost"})

    assert child.process.wait(20) == 0
    assert child.stdout_file.read_text() == "-m passerelle here there\n"


@pytest.mark.anyio
async def test_every_second_round_begins_with_the_base() -> None:
    asked: list[str] = []

    async def take(side: str) -> float:
        asked.append(side)
        return 1.0 if side == "ours" else 2.0

    assert await take_turns(3, take, "ours", "base") == [(1.0, 2.0)] * 3
    assert asked == ["ours", "base", "base", "ours", "ours", "base"]


@pytest.mark.parametrize(("ours", "verdict"), [(1.04, "held"), (1.06, "missed")])
def test_ours_may_not_cost_more_than_the_base(ours: float, verdict: str) -> None:
    row = compare("a message", [(ours * other, other) for other in (1.0, 2.0, 4.0)])
    assert (row.what, row.verdict) == ("a message ÷ base", verdict)
