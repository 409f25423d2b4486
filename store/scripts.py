"""The Lua files: read once, named by operation, called by their hash.

The header of a script names its keys in order (KEYS) and the shared functions that it uses (USES). Definitions for both
are put before its text, so that a script can write ``head`` for ``KEYS[1]``, and stored rows are parsed in one place.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from passerelle.core.frozen import frozen
from passerelle.store.connection import RespValue
from passerelle.store.lua_script import Lane, ScriptFile

if TYPE_CHECKING:
    from collections.abc import Iterable

Result = TypeVar("Result")

_LUA: Final = files("passerelle.store").joinpath("lua")
_KEYS: Final = re.compile(r"^-- KEYS  (.*?)^-- ARGV", re.MULTILINE | re.DOTALL)
_KEY_NAME: Final = re.compile(r"\b\d+ ([a-z_]+)")
_USES: Final = re.compile(r"^-- USES  (.+)$", re.MULTILINE)
_DEFINITION: Final = re.compile(
    r"^local function (\w+)\(.*?^end$|^local (\w+) = .*?$", re.MULTILINE | re.DOTALL
)
_WORD: Final = re.compile(r"\w+")

OPERATIONS: Final = (
    "ack",
    "advance_projection",
    "announce",
    "append",
    "archive_commit",
    "begin_forgetting",
    "begin_merge",
    "bump_epoch",
    "claim_due",
    "complete_head",
    "forget_uploads",
    "hello",
    "hold_owner",
    "keep_owner_key",
    "extend_claim",
    "hasten_due",
    "end_forgetting",
    "forget_home",
    "forget_in_inbox",
    "forget_rows",
    "forget_session",
    "forget_sessions",
    "defer_push",
    "keep_agent",
    "keep_link",
    "lease",
    "merge_segments",
    "note_erasures",
    "note_gone",
    "note_segment",
    "note_upload",
    "open_rows",
    "owe_link",
    "register_agent",
    "mute",
    "presence",
    "queue_add",
    "queue_drop",
    "queue_take",
    "release",
    "restore_session",
    "revive",
    "settle_link",
    "settle_bundle",
    "slots",
    "take_over",
    "target",
    "trim",
    "trim_inbox",
    "watch_lists",
)


@frozen
class Script(Generic[Result]):
    """One operation with the type of its reply; ``Nodes.run`` and its variants call it."""

    name: str
    decode: Callable[[RespValue], Result]
    lane: Lane = "writes"

    @property
    def file(self) -> ScriptFile:
        """The loaded script file."""
        return read_script(self.name)


@cache
def read_script(name: str) -> ScriptFile:
    """The script of an operation, as loaded."""
    text = compose_script(_LUA.joinpath(f"{name}.lua").read_text("utf-8")).encode()
    return ScriptFile.of(name, text)


def compose_script(text: str) -> str:
    """A script file as loaded: with the shared functions of its header, its KEYS by name, and ``control``.

    Raises:
        KeyError: the header names an unknown function.
    """
    flags, _, rest = text.partition("\n")
    keys = _KEYS.search(rest)
    names = _KEY_NAME.findall(keys[1]) if keys else []
    places = ", ".join(f"KEYS[{place}]" for place, _ in enumerate(names, 1))
    uses = _USES.search(rest)
    return "\n".join(
        (
            flags,
            *_collect_functions(uses[1].split() if uses else ()),
            f"local {', '.join(names)} = {places}" if names else "",
            "local control = cjson.decode(ARGV[1])",
            rest,
        )
    )


def _collect_functions(names: Iterable[str]) -> list[str]:
    """The texts of shared functions and their dependencies, each after those that it calls."""
    functions, wanted, left = read_functions(), set[str](), list(names)
    while left:
        name = left.pop()
        if name not in wanted:
            wanted.add(name)
            left += [word for word in _WORD.findall(functions[name]) if word in functions]
    return [text for name, text in functions.items() if name in wanted]


@cache
def read_functions() -> dict[str, str]:
    """The functions and constants that scripts share, by name, in the order in which they are defined."""
    text = _LUA.joinpath("shared", "preamble.lua").read_text("utf-8")
    return {found[1] or found[2]: found[0] for found in _DEFINITION.finditer(text)}


def read_all_scripts() -> list[bytes]:
    """Every script text, to be loaded into a server that does not know one."""
    return [read_script(name).text for name in OPERATIONS]
