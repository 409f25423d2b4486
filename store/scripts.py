"""The Lua files: read once, named by operation, called by their hash."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Final, Generic, Literal, TypeAlias, TypeVar

import orjson

from passerelle.store.connection import Reply, pack

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

Result = TypeVar("Result")
Lane: TypeAlias = Literal["writes", "leases", "reads", "acts"]
"""Connections of one primary that carry calls of a kind: no kind delays another."""
Control: TypeAlias = "Mapping[str, ControlValue]"
ControlValue: TypeAlias = "str | int | bool | Sequence[ControlValue] | Mapping[str, ControlValue]"
"""No None: JSON's null is true in Lua, so what is absent is ``False`` or an empty text."""

OPERATIONS: Final = (
    "ack",
    "advance_projection",
    "announce",
    "append",
    "bump_epoch",
    "claim_due",
    "delete_shared",
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
    "save_shared",
    "settle_link",
    "settle_bundle",
    "slots",
    "take_over",
    "target",
    "trim",
)


@dataclass(frozen=True, slots=True)
class ScriptFile:
    """The text of one operation; ``digest`` is what the server knows it by."""

    name: str
    text: bytes
    digest: str

    def pack_call(
        self, names: Sequence[str], control: Control, values: Sequence[bytes] = ()
    ) -> bytes:
        """The whole call as it goes over the wire: all keys declared, one JSON control argument, then byte strings."""
        return pack("EVALSHA", self.digest, len(names), *names, orjson.dumps(control), *values)


@dataclass(frozen=True, slots=True)
class Script(Generic[Result]):
    """One operation with the type of its reply; ``Nodes.run`` and its kin call it."""

    name: str
    decode: Callable[[Reply], Result]
    lane: Lane = "writes"


@cache
def read_script(name: str) -> ScriptFile:
    """The script of an operation."""
    text = files("passerelle.store").joinpath("lua", f"{name}.lua").read_bytes()
    return ScriptFile(name, text, hashlib.sha1(text, usedforsecurity=False).hexdigest())


def read_all_scripts() -> list[bytes]:
    """Every text, to load into a server that does not know one."""
    return [read_script(name).text for name in OPERATIONS]
