"""Hints: published ones are read back, and damaged ones are ignored."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from passerelle.channels.hints import Hint, parse_hint
from tests.unit.channels.history import History


@given(st.integers(0, 5), st.integers(1, 8))
def test_a_hint_gives_the_entries_as_they_are_stored(before: int, count: int) -> None:
    history = History()
    if before:
        history.append(before)
    previous = history.chain
    hint = parse_hint(history.append(count), "se_1")
    assert hint == Hint(
        before + 1, before + count, previous, history.chain, tuple(history.page(before))
    )


def test_a_hint_without_entries_names_what_was_stored() -> None:
    assert parse_hint(b"e 4-6.0000000a.0000000b\n", "se_1") == Hint(
        4, 6, "0000000a", "0000000b", ()
    )


def test_entries_that_do_not_make_the_named_chain_are_dropped() -> None:
    history = History()
    raw = history.append(2).replace(b"ev_2", b"ev_3")
    hint = parse_hint(raw, "se_1")
    assert hint is not None
    assert hint.entries == ()


@given(st.integers(0, 400))
def test_a_cut_hint_never_gives_some_of_its_entries(length: int) -> None:
    raw = History().append(3)
    hint = parse_hint(raw[: min(length, len(raw) - 1)], "se_1")
    assert hint is None or hint.entries == ()


@given(st.binary(max_size=200))
def test_other_bytes_are_no_hint_of_stored_events(raw: bytes) -> None:
    if not raw.startswith(b"e "):
        assert parse_hint(raw, "se_1") is None
