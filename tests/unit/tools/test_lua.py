"""A script whose header lacks a part is found, and so is one that calls a shared function without naming it."""

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


CALLER = SOUND.replace("-- Returns", "-- USES  server_ms\n-- Returns") + "return server_ms()\n"


def test_shared_functions_that_are_named_and_called_are_no_fault() -> None:
    assert list(check_header("add.lua", CALLER)) == []


@pytest.mark.parametrize(
    ("text", "named"),
    [
        (CALLER.replace("-- USES  server_ms\n", ""), "calls server_ms"),
        (CALLER.replace("return server_ms()", "return 1"), "USES names server_ms"),
        (CALLER.replace("USES  server_ms", "USES  server_ms sever_ms"), "USES names sever_ms"),
    ],
)
def test_shared_functions_are_named_by_those_that_call_them(text: str, named: str) -> None:
    [fault] = check_header("add.lua", text)
    assert named in fault
