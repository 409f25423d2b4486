"""The check for names of the product that only its tests use."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools import unused

PRODUCT = """
LIMIT: int = 1
SEEN: int = 2

class Kept:
    def called(self) -> int:
        return LIMIT

    def only_tested(self) -> int:
        return 0

@verb("go")
def registered() -> Kept:
    return Kept()

def caller() -> int:
    return registered().called()
"""
TESTS = "SEEN, LIMIT, Kept, called, only_tested, registered"


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for path, text in (("core/one.py", PRODUCT), ("tests/test_one.py", TESTS)):
        (tmp_path / path).parent.mkdir()
        (tmp_path / path).write_text(text, "utf-8")
    monkeypatch.setattr(unused, "ROOT", tmp_path)
    return tmp_path


def test_code_used_only_by_tests_is_found(root: Path) -> None:
    found = unused.find_unused(("core",), ("tools",))
    assert [(one.name, one.line) for one in found] == [("only_tested", 9), ("SEEN", 3)]
    (root / "tools").mkdir()
    (root / "tools/two.py").write_text("print(SEEN)", "utf-8")
    assert [one.name for one in unused.find_unused(("core",), ("tools",))] == ["only_tested"]


def test_an_environment_among_the_tests_is_no_test(root: Path) -> None:
    (root / "tests/.venv").mkdir()
    (root / "tests/.venv/library.py").write_text("caller", "utf-8")
    found = unused.find_unused(("core",), ())
    assert "caller" not in [one.name for one in found]


def test_no_reason_is_left_for_what_is_used(
    root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert root.exists()
    monkeypatch.setattr(unused, "KEPT", {"SEEN": "a reason", "LIMIT": "another"})
    assert unused.main() == 1
    said = capsys.readouterr().out
    assert "only tests use only_tested" in said
    assert "LIMIT is used, or gone" in said
    assert "SEEN" not in said
