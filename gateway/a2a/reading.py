"""A head as the face reads it: what is asked of whom, in which binding, by whoever shows what."""

from __future__ import annotations

from typing import TYPE_CHECKING

from passerelle.core.record import value

if TYPE_CHECKING:
    from passerelle.core.credentials import Credentials
    from passerelle.gateway.a2a.bindings import Binding
    from passerelle.gateway.a2a.incoming import Incoming
    from passerelle.gateway.a2a.paths import Spot, Target


@value
class Reading:
    """Holds for each request with this head, as long as the agents are those of ``names``.

    ``agent`` is the one that the path names, if it names one; whether it is served is another question.
    """

    incoming: Incoming
    names: tuple[str, ...]
    agent: str | None
    spot: Spot
    target: Target | None
    binding: Binding
    shown: Credentials
