"""Constraints of a task, set by its owner (TR-11). Pure: the caller of this module enforces them.

``agents`` and ``hosts`` restrict the agents and their hosts, ``maxSeconds`` the duration of an attempt,
``maxCostMicros`` the cost of all attempts, ``maxOutputBytes`` and ``mediaTypes`` the output (content without a media
type is not checked). ``permission: never`` forbids to ask for an approval on its behalf. Other members are stored for
clients and have no effect.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from passerelle.core.errors import InvalidInput
from passerelle.core.wire.record import record

if TYPE_CHECKING:
    from passerelle.core.task.record import TaskRecord
    from passerelle.core.wire.json import JsonObject

_MOST_NAMES: Final = 64


@record
class Constraints:
    """The constraints of a task; None: not constrained."""

    agents: tuple[str, ...] | None = None
    hosts: tuple[str, ...] | None = None
    max_seconds: int | None = None
    max_cost_micros: int | None = None
    max_output_bytes: int | None = None
    media_types: tuple[str, ...] | None = None
    never_asks: bool = False


def read_constraints(value: JsonObject) -> Constraints:
    """Reads the constraints from a request.

    Raises:
        InvalidInput: one of them has a wrong type.
    """
    permission = value.get("permission")
    if permission not in {None, "never"}:
        raise InvalidInput("constraints.permission", "must be 'never', or absent")
    return Constraints(
        agents=_read_names(value, "agents"),
        hosts=_read_names(value, "hosts"),
        max_seconds=_read_number(value, "maxSeconds"),
        max_cost_micros=_read_number(value, "maxCostMicros"),
        max_output_bytes=_read_number(value, "maxOutputBytes"),
        media_types=_read_names(value, "mediaTypes"),
        never_asks=permission is not None,
    )


def find_disallowed(constraints: Constraints, agent: str, endpoint: str | None) -> str | None:
    """Why an agent may not work on the task: the constraint that excludes it."""
    if constraints.agents is not None and agent not in constraints.agents:
        return f"constraint agents: {agent!r} is not among them"
    host = urlsplit(endpoint or "").hostname or ""
    if constraints.hosts is not None and host not in constraints.hosts:
        return f"constraint hosts: {host!r} is not among them"
    return None


def find_overspent(constraints: Constraints, micros: int) -> str | None:
    """Why no further attempt may begin, if the estimated total cost is ``micros``."""
    most = constraints.max_cost_micros
    if most is None or micros <= most:
        return None
    return f"constraint maxCostMicros: the estimated cost is {micros}, and {most} are allowed"


def find_excess(constraints: Constraints, task: TaskRecord) -> str | None:
    """Why a task must stop, given its output so far."""
    brought = [one for one in task.artifacts if one.direction == "produced"]
    total, most = sum(one.size for one in brought), constraints.max_output_bytes
    if most is not None and total > most:
        return f"constraint maxOutputBytes: the output has {total}, and {most} are allowed"
    types = {kind for one in brought for kind in one.media_types}
    if constraints.media_types is not None and not types <= set(constraints.media_types):
        strange = ", ".join(sorted(types - set(constraints.media_types)))
        return f"constraint mediaTypes: {strange} is not among them"
    return None


def _read_number(value: JsonObject, name: str) -> int | None:
    number = value.get(name)
    if number is None:
        return None
    if isinstance(number, bool) or not isinstance(number, int) or not 0 < number <= 2**53:
        raise InvalidInput(f"constraints.{name}", "must be a whole number above 0")
    return number


def _read_names(value: JsonObject, name: str) -> tuple[str, ...] | None:
    given = value.get(name)
    if given is None:
        return None
    names = given if isinstance(given, list) else []
    known = tuple(one for one in names if isinstance(one, str) and one)
    if not known or len(known) != len(names) or len(known) > _MOST_NAMES:
        raise InvalidInput(f"constraints.{name}", f"must be a list of 1 to {_MOST_NAMES} names")
    return known
