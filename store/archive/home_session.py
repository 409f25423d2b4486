"""The principal that a record names, and whether a session is its home session.

The home session stores what belongs to a caller and to no conversation. It never ends, so it stays in the engine, and
is removed only with its owner.
"""

from __future__ import annotations

from typing import Any, cast

import orjson

from passerelle.core.ids import read_shard
from passerelle.core.principal import Principal


def find_principal(snapshot: bytes) -> Principal | None:
    """The principal named by a record of a session or device list; None if it names none."""
    try:
        said = cast("dict[str, Any]", orjson.loads(snapshot))
        name, tenant = said["principal"], said["tenant"]
    except (LookupError, TypeError, ValueError):
        return None
    if not isinstance(name, str) or not isinstance(tenant, str):
        return None
    return Principal(name, tenant)


def is_home(session: str, snapshot: bytes) -> bool:
    """Whether a session is the home session of the principal that its record names."""
    whose = find_principal(snapshot)
    if whose is None or whose.home != read_shard(session):
        return False
    return whose.home_session == session
