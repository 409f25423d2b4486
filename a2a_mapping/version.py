"""Which protocol version a request asks for, judged before anything is dispatched (A2A 1.0 section 3.6).

Only ``Major.Minor`` counts. An absent or empty version means 0.3, as the specification says.
"""

from __future__ import annotations

import re
from typing import Final

from passerelle.core.errors import VersionNotSupported

HEADER: Final = "A2A-Version"
"""Also the name of the query parameter."""
UNSET: Final = "0.3"
SERVED: Final = ("1.0",)
_FORM: Final = re.compile(r"([0-9]{1,3}\.[0-9]{1,3})(?:\.[0-9]{1,3})?")


def judge_version(header: str | None, query: str | None) -> str:
    """The ``Major.Minor`` to serve; the header wins over the query parameter.

    Raises:
        VersionNotSupported: absent, empty, malformed, or one that is not served.
    """
    asked = (header or query or "").strip()
    match = _FORM.fullmatch(asked)
    version = match[1] if match else asked[:20]
    if version not in SERVED:
        raise VersionNotSupported(version, SERVED)
    return version
