"""Untrusted text on the user's screen."""

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from passerelle.core.wire.display import escape_line, escape_text, escape_value


@given(st.text())
def test_escaped_text_is_printable_and_stable(text: str) -> None:
    shown = escape_text(text)
    assert all(
        letter.isprintable() or letter in "\n\t" or unicodedata.category(letter) == "Zs"
        for letter in shown
    )
    assert escape_text(shown) == shown
    shown.encode()


@given(st.text())
def test_a_line_is_one_line(text: str) -> None:
    assert len(escape_line(text).splitlines()) <= 1


@pytest.mark.parametrize(
    "letter",
    "\x00\x1b\x7f\x9b\u00ad\u061c\u200b\u200e\u202a\u2028\u2060\u2069\ufeff\ufff9\U000e0041\ufe01\u115f\u2800\ud800",
)
def test_invisible_characters_are_escaped(letter: str) -> None:
    assert escape_text(f"a{letter}b") == f"a\\u{{{ord(letter):x}}}b"


def test_ordinary_words_pass_in_any_script() -> None:
    for text in ("naïve", "日本語", "العربية", "❤️", "two\nlines\t.", "\\u{202e} typed"):
        assert escape_text(text) == text


def test_values_are_escaped_in_every_place() -> None:
    assert escape_value({"a\u202e": ["\u200b", 1, None, {"b": True}]}) == {
        r"a\u{202e}": [r"\u{200b}", 1, None, {"b": True}]
    }
