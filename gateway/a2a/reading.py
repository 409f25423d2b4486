"""A head as the face reads it: what is asked of whom, in which binding, by whoever shows what."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from passerelle.core.wire.record import value
from passerelle.gateway.a2a.operations import Call

if TYPE_CHECKING:
    from passerelle.a2a_mapping.rpc import Method
    from passerelle.core.credentials import Credentials
    from passerelle.core.wire.json import JsonObject
    from passerelle.gateway.a2a.bindings import Binding
    from passerelle.gateway.a2a.incoming import Incoming
    from passerelle.gateway.a2a.paths import Spot, Target
    from passerelle.runtime.common.secret import Secret


@value
class Admitted:
    """A call that was let in: the next one with the same head differs in its params only, which are left out here.

    It holds for the same principal, which a reload of the configuration makes anew, and the same ``method``.
    """

    method: Method
    call: Call
    authorization: Secret | None

    def ask(self, params: JsonObject) -> Call:
        """The next one."""
        call = self.call
        return Call(
            call.principal,
            call.agent,
            params,
            call.version,
            call.asked,
            call.extensions,
            call.idem,
            call.traceparent,
            call.tracestate,
            call.wish,
            call.judge,
            call.own_url,
        )


@dataclass(slots=True)
class Reading:
    """Holds for each request with this head, as long as the agents are those of ``names``.

    ``agent`` is the one that the path names, if it names one; ``is_served`` says whether it is one of ``names``.
    """

    incoming: Incoming
    names: tuple[str, ...]
    agent: str | None
    spot: Spot
    target: Target | None
    binding: Binding
    shown: Credentials
    is_served: bool
    admitted: Admitted | None = None
