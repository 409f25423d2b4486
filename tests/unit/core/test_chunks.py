"""Cutting sequences into chunks."""

from __future__ import annotations

from passerelle.core.chunks import in_chunks


def test_chunks_are_of_the_type_of_the_whole_and_the_last_may_be_short() -> None:
    assert list(in_chunks([1, 2, 3, 4, 5], 2)) == [[1, 2], [3, 4], [5]]
    assert list(in_chunks(b"abcd", 2)) == [b"ab", b"cd"]
    assert list(in_chunks("abc", 9)) == ["abc"]
    assert not list(in_chunks((), 9))
