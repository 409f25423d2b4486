"""A field with one value occurs once in a head, and several lines of a list are one list."""

from __future__ import annotations

import pytest

from passerelle.core.wire.headers import SINGLE, find_repeated, join_fields, read_fields


@pytest.mark.parametrize("name", sorted(SINGLE))
def test_repeated_header_that_allows_one_value_is_found(name: str) -> None:
    assert find_repeated([name, "accept"]) is None
    assert find_repeated([name, "accept", name]) == name
    assert find_repeated([name.encode(), b"accept", name.encode()]) == name
    assert find_repeated([name, "accept", "accept"]) is None


def test_of_the_header_of_a_proxy_the_last_line_counts() -> None:
    lines = [("X-Cert", "CN=said"), ("X-Cert", "CN=seen")]
    assert find_repeated([name for name, _ in lines]) is None
    assert join_fields(lines, "x-cert") == {"x-cert": "CN=seen"}
    raw = [(name.lower().encode(), value.encode()) for name, value in lines]
    assert read_fields(raw, "x-cert") == {"x-cert": "CN=seen"}


def test_lines_of_a_list_are_joined_in_their_order() -> None:
    lines = [("A2A-Extensions", "one"), ("tracestate", "a=1"), ("a2a-extensions", "two, three")]
    wanted = {"a2a-extensions": "one, two, three", "tracestate": "a=1"}
    assert join_fields(lines) == wanted
    assert read_fields([(a.lower().encode(), b.encode()) for a, b in lines]) == wanted
    assert read_fields([(b"x", b"\xe9")]) == {"x": "\xe9"}
