"""Short ids: the end of an id, as tables in a terminal show it, in place of the whole one."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

import typer

from passerelle.a2a_mapping.members import objects_at, text_at
from passerelle.core.errors import NotFound

if TYPE_CHECKING:
    from passerelle.cli.control_client import ControlClient

_END: Final = r"(?=[a-z]*\d)[0-9a-z]{6,25}"
"""A digit tells it from a word that stands in a path."""
_SHORT: Final = re.compile(rf"/v1/(tasks|sessions|approvals)/({_END})(?=/|$)")
_KINDS: Final = {
    "tasks": ("taskId", "task", ("tasks",)),
    "sessions": ("sessionId", "session", ("sessions",)),
    "approvals": ("actionId", "action", ("pending", "actions")),
}
"""By what a thing is named, what it is, and the members that list it."""
_MOST: Final = 200


def expand_path(gateway: ControlClient, path: str) -> str:
    """A path with the whole id where it has a short one.

    Raises:
        NotFound, BadParameter: as ``find_whole_id`` does.
    """
    found = _SHORT.match(path)
    if found is None:
        return path
    whole = find_whole_id(gateway, found[1], found[2])
    return f"/v1/{found[1]}/{quote(whole, safe='~')}{path[found.end() :]}"


def expand_id(gateway: ControlClient, kind: str, text: str) -> str:
    """An id that is not part of a path: itself, or the whole one of a short one. Raises as ``find_whole_id`` does."""
    return find_whole_id(gateway, kind, text) if re.fullmatch(_END, text) else text


def find_whole_id(gateway: ControlClient, kind: str, short: str) -> str:
    """The id that ends so, among the 200 that a list shows first.

    Raises:
        NotFound: there is none.
        BadParameter: there are several.
    """
    name, what, members = _KINDS[kind]
    answer = gateway.get(f"/v1/{kind}", {} if kind == "approvals" else {"pageSize": _MOST})
    listed = [one for member in members for one in objects_at(answer, member)]
    fitting = sorted({text_at(one, name) for one in listed if text_at(one, name).endswith(short)})
    match fitting:
        case [whole]:
            return whole
        case []:
            raise NotFound(what, short)
        case _:
            raise typer.BadParameter(f"{short} is the end of several: {', '.join(fitting[:5])}")
