"""Short ids: the end of an id, as tables in a terminal show it, instead of the whole id."""

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
"""The digit distinguishes a short id from a word in a path."""
_SHORT: Final = re.compile(rf"/v1/(tasks|sessions|approvals)/({_END})(?=/|$)")
_KINDS: Final = {
    "tasks": ("taskId", "task", ("tasks",)),
    "sessions": ("sessionId", "session", ("sessions",)),
    "approvals": ("actionId", "action", ("pending", "actions")),
}
"""By kind: the id member, the noun, and the list members."""
_MOST: Final = 200


def expand_path(gateway: ControlClient, path: str) -> str:
    """Replaces a short id in a path by the whole one.

    Raises:
        NotFound, BadParameter: as ``find_whole_id`` does.
    """
    found = _SHORT.match(path)
    if found is None:
        return path
    whole = find_whole_id(gateway, found[1], found[2])
    return f"/v1/{found[1]}/{quote(whole, safe='~')}{path[found.end() :]}"


def expand_id(gateway: ControlClient, kind: str, text: str) -> str:
    """Returns the whole id for a short one outside a path; other texts unchanged. Raises as ``find_whole_id`` does."""
    return find_whole_id(gateway, kind, text) if re.fullmatch(_END, text) else text


def find_whole_id(gateway: ControlClient, kind: str, short: str) -> str:
    """Returns the id with this ending, among the first 200 of the list.

    Raises:
        NotFound: no id matches.
        BadParameter: several ids match.
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
