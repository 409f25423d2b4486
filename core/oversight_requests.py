"""What whoever keeps a gateway running asks of it as a whole."""

from __future__ import annotations

from typing import TypeAlias

from passerelle.core.wire.record import record


@record
class GetOverview:
    """What is open, and how the runtime stands."""


OversightQuery: TypeAlias = GetOverview
