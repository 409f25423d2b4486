"""Draws docs/protocol/differences.md from the table that payloads and conversations are held against."""

import tomllib
from pathlib import Path
from typing import Final

TABLE: Final = Path(__file__).resolve().parent.parent / "tests/conversations/differences.toml"
_HEAD: Final = """\
<!-- Drawn from tests/conversations/differences.toml by make generate. -->
# What differs through the gateway

A conversation with an agent goes through the gateway as it goes directly: it ends in the same state, its history is in
the same order, the agent gets the same messages, and the caller gets an answer as soon. `make conversations` plays both
ways with agents of every make and holds one against the other; `make conformance` does so with payloads, byte for byte.
These differences are meant, and there are no others.

Some SDKs leave a task at work for ever when their program has raised, and tell the caller an internal error. Such a
task has no state in which it ends; the gateway ends it as failed, with the words of that error.

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
