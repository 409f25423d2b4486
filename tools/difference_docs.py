"""Draws docs/protocol/differences.md from the table that payloads and conversations are held against."""

import tomllib
from pathlib import Path
from typing import Final

TABLE: Final = Path(__file__).resolve().parent.parent / "tests/conversations/differences.toml"
_HEAD: Final = """\
<!-- Generated from tests/conversations/differences.toml by make generate. -->
# Differences to direct calls

A conversation through the gateway equals a direct one: it ends in the same state, its history has
the same order, the agent gets the same messages, and the caller gets a response as soon. `make conversations` runs both
ways with agents of all frameworks and compares them; `make conformance` compares payloads, byte for byte.
The following differences are intended, and there are no others.

If their program raises, some SDKs leave the task working forever and return an internal error to the caller. Such a
task never reaches an end state; the gateway ends it as failed, with the text of that error.

If an agent answers a message with a task that is still working, a caller that waits gets the end of the task, as A2A
requires, or the working task once it has not changed for `timeout.stalled` (15 s).

A cancellation stays in force: if the agent refuses it, or completes the task all the same, the task ends as canceled,
with its artifacts.

| | directly | through the gateway | why |
|---|---|---|---|
"""


def render_differences() -> str:
    """The whole page."""
    rows = tomllib.loads(TABLE.read_text("utf-8"))["row"]
    lines = [
        f'| <a id="{row["id"]}"></a>{row["what"]} | {row["direct"]} | {row["through"]} | {row["reason"]} |\n'
        for row in rows
    ]
    return _HEAD + "".join(lines)
