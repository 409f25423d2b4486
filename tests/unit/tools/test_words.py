"""The check that names and sentences use the words of the field."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tools import words

if TYPE_CHECKING:
    from pathlib import Path


def test_type_and_function_names_are_found_at_any_level(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "core").mkdir()
    (tmp_path / "core/one.py").write_text(
        "class Doorkeeper:\n    def recognize(self): ...\n    def place_order(self): ...\nSpill: TypeAlias = int\n",
        "utf-8",
    )
    monkeypatch.setattr(words, "ROOT", tmp_path)
    assert [line.split(" is ")[0] for line in words.find_names(("core",))] == [
        "core/one.py:1: Doorkeeper",
        "core/one.py:2: recognize",
        "core/one.py:4: Spill",
    ]


@pytest.mark.parametrize(
    ("name", "is_found"),
    [
        ("README.md", True),
        ("cli/verbs.py", True),
        ("docs/decisions/0001-a.md", False),
        ("a.bin", False),
    ],
)
def test_a_phrase_is_found_where_users_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, *, is_found: bool
) -> None:
    path = tmp_path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("One line.\nA Standing Yes, and more.\n", "utf-8")
    monkeypatch.setattr(words, "ROOT", tmp_path)
    monkeypatch.setattr(words, "list_files", lambda: [name])
    found = [f"{name}:2: 'standing yes' is 'standing approval'"] if is_found else []
    assert list(words.find_phrases()) == found


def test_no_plain_term_has_a_phrase_in_it() -> None:
    assert not [
        (phrase, plain)
        for phrase in words.PHRASES
        for plain in words.PHRASES.values()
        if phrase in plain
    ]
