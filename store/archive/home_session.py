"""Whose session a record says it is, and whether it is a home session.

That is the one with what belongs to a caller and to no conversation. It never ends, so it stays in the engine, and goes
with its owner alone.
"""

from __future__ import annotations

from typing import Any, cast

import orjson

from passerelle.core.ids import read_shard
from passerelle.core.principal import Principal


def find_principal(snapshot: bytes) -> Principal | None:
    """The principal that a record names, of a session or of a list of devices; None where it does not say it."""
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
