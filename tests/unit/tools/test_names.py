"""The check that an exported type name has one meaning."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools import names


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for path, text in (
        (
            "core/one.py",
            "class Place: ...\nclass _Own: ...\nKind: TypeAlias = str\nLIMIT: int = 1\n",
        ),
        ("store/two.py", "class Place: ...\nclass _Own: ...\nLIMIT: int = 2\n"),
    ):
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_text(text, "utf-8")
    monkeypatch.setattr(names, "ROOT", tmp_path)
    monkeypatch.setattr(names, "SHARED", {"Place": "the two of a test"})
    return tmp_path


def test_a_name_that_is_known_to_be_shared_passes(root: Path) -> None:
    assert root.exists()
    assert names.main() == 0


def test_a_further_meaning_is_found(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (root / "store/two.py").write_text("class Place: ...\nclass Kind: ...\n", "utf-8")
    assert names.main() == 1
    assert capsys.readouterr().out == "Kind is more than one type: core/one.py:3, store/two.py:2\n"


def test_a_name_that_has_one_meaning_by_now_leaves_the_list(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (root / "store/two.py").write_text("class Spot: ...\n", "utf-8")
    assert names.main() == 1
    assert "Place has one meaning by now" in capsys.readouterr().out
