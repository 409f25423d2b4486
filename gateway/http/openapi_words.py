"""Rewrites descriptions for readers of the document: members by their names on the wire, without requirement ids."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from pydantic.alias_generators import to_camel

if TYPE_CHECKING:
    from collections.abc import Iterator

    from passerelle.core.wire.json import Json

_QUOTED: Final = re.compile(r"``([^`]+)``")
_ROW: Final = r"(?:[A-Z][A-Z0-9]*-|I)[0-9]+"
_LEDGER: Final = re.compile(rf" \({_ROW}(?:(?:, |…){_ROW})*\)")
_DESCRIPTION: Final = "description"


def use_wire_names(document: Json) -> None:
    """Rewrites the descriptions of a document, in place."""
    members = frozenset(_list_members(document))
    for holder in _list_holders(document):
        text = holder[_DESCRIPTION]
        if isinstance(text, str):
            holder[_DESCRIPTION] = _rewrite(text, members)


def _rewrite(text: str, members: frozenset[str]) -> str:
    def name(match: re.Match[str]) -> str:
        camel = to_camel(match[1])
        return f"`{camel if camel in members else match[1]}`"

    return _QUOTED.sub(name, _LEDGER.sub("", text))


def _list_holders(value: Json) -> Iterator[dict[str, Json]]:
    """Yields every object with a description text."""
    if isinstance(value, dict):
        if isinstance(value.get(_DESCRIPTION), str):
            yield value
        for member in value.values():
            yield from _list_holders(member)
    elif isinstance(value, list):
        for item in value:
            yield from _list_holders(item)


def _list_members(value: Json) -> Iterator[str]:
    """Yields the member names of every schema, and the parameter names."""
    if isinstance(value, dict):
        properties = value.get("properties")
        if isinstance(properties, dict):
            yield from properties
        name = value.get("name")
        if isinstance(name, str) and "in" in value:
            yield name
        for member in value.values():
            yield from _list_members(member)
    elif isinstance(value, list):
        for item in value:
            yield from _list_members(item)
