"""The Lua files of the gateway's store, named by operation."""

from __future__ import annotations

from functools import cache
from typing import Final

from passerelle.store.lua_script import Script, load_script

OPERATIONS: Final = (
    "ack",
    "advance_projection",
    "announce",
    "append",
    "bump_epoch",
    "claim_due",
    "forget_uploads",
    "hello",
    "hold_due",
    "hold_push",
    "keep_agent",
    "keep_link",
    "lease",
    "note_upload",
    "owe_link",
    "register_agent",
    "mute",
    "presence",
    "release",
    "revive",
    "settle_link",
    "settle_bundle",
    "slots",
    "take_over",
    "target",
    "trim",
)


@cache
def read_script(name: str) -> Script:
    """The script of an operation."""
    return load_script("passerelle.store", name)


def read_all_scripts() -> list[bytes]:
    """Every text, to load into a server that does not know one."""
    return [read_script(name).text for name in OPERATIONS]
