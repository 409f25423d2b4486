"""A script whose header lacks a part is found."""

import pytest

from tools.lua import check_header

SOUND = """#!lua
-- Adds one to a counter.
-- KEYS: 1 the counter
-- ARGV: none
-- Returns: the new value
-- Never: creates a second key
return redis.call('INCR', KEYS[1])
"""


def test_sound_header_has_no_fault() -> None:
    assert list(check_header("add.lua", SOUND)) == []


@pytest.mark.parametrize(
    ("part", "named"),
    [
        ("#!lua\n", "first line"),
        ("-- Adds one to a counter.\n", "purpose"),
        ("-- KEYS: 1 the counter\n", "KEYS"),
        ("-- ARGV: none\n", "ARGV"),
        ("-- Returns: the new value\n", "RETURNS"),
        ("-- Never: creates a second key\n", "NEVER"),
    ],
)
def test_header_that_lacks_a_part_is_named(part: str, named: str) -> None:
    faults = list(check_header("add.lua", SOUND.replace(part, "")))
    assert any(named in fault for fault in faults)
