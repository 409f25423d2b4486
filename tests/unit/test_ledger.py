"""The ledger agrees with the tests in both directions, and the check would fail otherwise."""

from pathlib import Path

import pytest

from tests.support.ledger import INVARIANTS, LedgerFault, LedgerRow, State, collect, judge, load


def write(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def row(name: str, missing: str | None = None) -> LedgerRow:
    return LedgerRow(name, "a source", "A sentence.", missing)


def test_every_row_has_a_test_or_a_reason_and_every_mark_a_row() -> None:
    assert judge(load(), collect()).faults == ()


def test_all_requirements_and_invariants_are_in_the_ledger() -> None:
    rows = load()
    invariants = [r.id for r in rows if r.source == INVARIANTS]
    assert invariants == [f"I{n}" for n in range(1, 11)]
    assert len(rows) - len(invariants) == 391


def test_test_and_reason_decide_the_state(tmp_path: Path) -> None:
    write(
        tmp_path,
        "test_a.py",
        '@pytest.mark.requirement("A", "B")\ndef test_x(): ...\n'
        "pytestmark = [pytest.mark.requirement('D')]\n"
        'CASES = [pytest.param(1, marks=pytest.mark.requirement("F"))]\n'
        '@pytest.mark.parametrize("n", CASES)\ndef test_z(n): ...\n'
        '@requirement("E")\nclass TestY: ...\n',
    )
    rows = (row("A"), row("B", "half"), row("C", "not built"), row("D"), row("E"), row("F"))
    verdict = judge(rows, collect(tmp_path))
    assert verdict.faults == ()
    assert verdict.states == {
        "A": State.CLOSED,
        "B": State.BEGUN,
        "C": State.OPEN,
        "D": State.CLOSED,
        "E": State.CLOSED,
        "F": State.CLOSED,
    }
    assert verdict.summary == "ledger: 4 closed, 1 begun, 1 open"


def test_unknown_id_in_a_test_is_a_fault(tmp_path: Path) -> None:
    write(tmp_path, "test_a.py", 'pytestmark = pytest.mark.requirement("A-1")\ndef test_x(): ...\n')
    (fault,) = judge((), collect(tmp_path)).faults
    assert "test_a.py:1" in fault
    assert "A-1" in fault


def test_row_with_neither_test_nor_reason_is_a_fault(tmp_path: Path) -> None:
    (fault,) = judge((row("A-1"),), collect(tmp_path)).faults
    assert fault.startswith("A-1: neither")


def test_marks_outside_of_test_files_close_nothing(tmp_path: Path) -> None:
    write(tmp_path, "support.py", '@requirement("A-1")\ndef test_x(): ...\n')
    assert collect(tmp_path) == ()


@pytest.mark.parametrize("mark", ["requirement()", "requirement(NAME)", 'requirement(id="A")'])
def test_mark_that_cannot_be_read_is_a_fault(tmp_path: Path, mark: str) -> None:
    write(tmp_path, "test_a.py", f"@pytest.mark.{mark}\ndef test_x(): ...\n")
    with pytest.raises(LedgerFault, match=r"test_a\.py:1"):
        collect(tmp_path)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ('[[row]]\nid = "A"\nsource = "s"\n', "sentence"),
        ('[[row]]\nid = "A"\nsource = "s"\nsentence = "x"\nnote = "y"\n', "note"),
        ('[[row]]\nid = "A"\nsource = "s"\nsentence = "x"\nmissing = " "\n', "says something"),
        ('[[row]]\nid = "A"\nsource = "s"\nsentence = "x"\n' * 2, "twice"),
        ("[rows]\n", "rows"),
    ],
)
def test_row_of_another_shape_is_refused(tmp_path: Path, text: str, named: str) -> None:
    with pytest.raises(LedgerFault, match=named):
        load(write(tmp_path, "requirements.toml", text))


@pytest.mark.parametrize(
    "text",
    [
        'pytest.mark.requirement("A-1")\n',
        'pytestmark = pytest.mark.requirement("A-1")\n',
        '@pytest.mark.requirement("A-1")\ndef never_collected(): ...\n',
        '@pytest.mark.requirement("A-1")\nclass Other:\n    def test_x(self): ...\n',
        'class Other:\n    @pytest.mark.requirement("A-1")\n    def test_x(self): ...\n',
        'def test_x():\n    @pytest.mark.requirement("A-1")\n    def test_y(): ...\n',
        'ROWS = [pytest.mark.requirement("A-1")]\ndef test_x(): ...\n',
    ],
)
def test_mark_that_no_collected_test_carries_is_a_fault(tmp_path: Path, text: str) -> None:
    write(tmp_path, "test_a.py", text)
    with pytest.raises(LedgerFault, match="no collected test carries"):
        collect(tmp_path)


@pytest.mark.parametrize("named", ["TaskLost", "TASK_LOST", '"task.lost"', None])
def test_row_about_an_event_class_wants_a_test_that_names_it(
    tmp_path: Path, named: str | None
) -> None:
    write(tmp_path, "test_a.py", f'@requirement("A")\ndef test_x():\n    assert {named}\n')
    for sentence in ("`task.lost`.", "`task.lost` — nobody knows.", "`task.paused` / `task.lost`."):
        faults = judge((LedgerRow("A", "a source", sentence),), collect(tmp_path)).faults
        assert len(faults) == (named is None)
    assert (
        judge((LedgerRow("A", "a source", "`submit_turn`: a turn."),), collect(tmp_path)).faults
        == ()
    )
