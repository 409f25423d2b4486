"""The prelude of a loaded script: the shared functions that it uses, and its keys by name."""

from __future__ import annotations

import pytest

from passerelle.store.scripts import compose_script, read_functions

SCRIPT = """#!lua flags=allow-oom
-- count: adds one.
--
-- KEYS  1 counter (of the day 7)   2 due
--       3.. others, by index
-- ARGV  1 control, JSON: name
-- USES  wake_lease
-- RETURNS  the new value
-- NEVER  counts twice

return redis.call('INCR', counter)
"""


def test_flags_stay_on_the_first_line_and_the_rest_at_the_end() -> None:
    first, _, rest = SCRIPT.partition("\n")
    lines = compose_script(SCRIPT)
    assert lines.startswith(f"{first}\n")
    assert lines.endswith(rest)


def test_keys_are_named_in_their_order_and_those_by_index_are_not() -> None:
    assert "\nlocal counter, due = KEYS[1], KEYS[2]\n" in compose_script(SCRIPT)


def test_functions_come_with_those_that_they_use_and_no_others() -> None:
    functions = read_functions()
    text = compose_script(SCRIPT)
    found = {name for name, function in functions.items() if function in text}
    assert found == {"wake_lease", "int_text"}
    assert text.index(functions["int_text"]) < text.index(functions["wake_lease"])


def test_an_unknown_function_is_an_error() -> None:
    with pytest.raises(KeyError, match="sleep_lease"):
        compose_script(SCRIPT.replace("USES  wake", "USES  sleep"))
