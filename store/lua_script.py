"""One Lua file: read once, called by its hash with every key declared."""

from __future__ import annotations

import hashlib
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Literal, Protocol, Self, TypeAlias, TypeVar

import orjson

from passerelle.core.frozen import frozen
from passerelle.store.connection import pack

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from passerelle.store.connection import RespValue

Result_co = TypeVar("Result_co", covariant=True)
Lane: TypeAlias = Literal["writes", "leases", "reads", "acts"]
"""Connections of one primary for one class of calls: no class delays another."""

Control: TypeAlias = "Mapping[str, ControlValue]"
ControlValue: TypeAlias = "str | int | bool | Sequence[ControlValue] | Mapping[str, ControlValue]"
"""No None: JSON's null is true in Lua, so absent values are ``False`` or an empty text."""


@frozen
class ScriptFile:
    """The text of one operation; ``digest`` identifies it at the server."""

    name: str
    text: bytes
    digest: str

    @classmethod
    def of(cls, name: str, text: bytes) -> Self:
        """The script with this text."""
        return cls(name, text, hashlib.sha1(text, usedforsecurity=False).hexdigest())

    def pack_call(
        self, keys: Sequence[str], control: Control, values: Sequence[bytes] = ()
    ) -> bytes:
        """The encoded call: all keys declared, one JSON control argument, then byte strings."""
        return pack("EVALSHA", self.digest, len(keys), *keys, orjson.dumps(control), *values)


@cache
def load_script(package: str, name: str) -> ScriptFile:
    """The script of an operation, from the folder ``lua`` of an installed package."""
    text = files(package).joinpath("lua", f"{name}.lua").read_bytes()
    return ScriptFile.of(name, text)


class LoadedScript(Protocol[Result_co]):
    """A script with the decoder of its reply, and its lane."""

    @property
    def file(self) -> ScriptFile:
        """The loaded script file."""
        ...

    @property
    def decode(self) -> Callable[[RespValue], Result_co]:
        """Decodes its reply."""
        ...

    @property
    def lane(self) -> Lane:
        """The connections that carry it."""
        ...
