"""The protocol version that a request asks for, checked before it is dispatched (A2A 1.0 section 3.6).

Only ``Major.Minor`` counts. An absent or empty version means 0.3, as the specification requires.
"""

from __future__ import annotations

import re
from typing import Final, Literal, TypeAlias

from passerelle.core.errors import VersionNotSupported

HEADER: Final = "A2A-Version"
"""Also the name of the query parameter."""
Version: TypeAlias = Literal["1.0", "0.3"]
CURRENT: Final = "1.0"
LEGACY: Final = "0.3"
"""Also the meaning of an absent version."""
SERVED: Final[tuple[Version, ...]] = (CURRENT, LEGACY)
_BY_NAME: Final[dict[str, Version]] = {version: version for version in SERVED}
_FORM: Final = re.compile(r"([0-9]{1,3}\.[0-9]{1,3})(?:\.[0-9]{1,3})?")


def judge_version(header: str | None, query: str | None) -> Version:
    """The ``Major.Minor`` to serve; the header takes precedence over the query parameter.

    Raises:
        VersionNotSupported: malformed or not supported.
    """
    asked = (header or query or "").strip()
    if not asked:
        return LEGACY
    if asked == CURRENT:
        return CURRENT
    match = _FORM.fullmatch(asked)
    version = match[1] if match else asked[:20]
    served = _BY_NAME.get(version)
    if served is None:
        raise VersionNotSupported(version, SERVED)
    return served
