"""A generated file that differs from its source is found."""

from pathlib import Path

import pytest

from tools import generate
from tools.generate import find_drift


def draw() -> str:
    return "what the code says\n"


def test_absent_and_edited_files_have_drifted(tmp_path: Path) -> None:
    (tmp_path / "same.md").write_text(draw(), encoding="utf-8")
    (tmp_path / "edited.md").write_text("by hand\n", encoding="utf-8")
    generated = {"same.md": draw, "edited.md": draw, "absent.md": draw}
    assert find_drift(tmp_path, generated) == {"edited.md": draw(), "absent.md": draw()}


def test_check_writes_nothing_and_is_red_until_files_are_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(generate, "ROOT", tmp_path)
    monkeypatch.setattr(generate, "GENERATED", {"docs/new.md": draw})
    assert generate.main(["--check"]) == 1
    assert not (tmp_path / "docs").exists()
    assert generate.main([]) == 0
    assert generate.main(["--check"]) == 0
