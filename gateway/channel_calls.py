"""Commands over channels: the same table of methods as ``/v1`` (CMD-27)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from passerelle.core.session.device import name_list
from passerelle.gateway.rpc import ANSWERING, call
from passerelle.runtime.common.calls import Caller

if TYPE_CHECKING:
    from passerelle.control.service import Service
    from passerelle.core.principal import Principal
    from passerelle.core.wire.json import JsonObject
    from passerelle.runtime.limits.gate import Gate


@dataclass(frozen=True, slots=True)
class ServiceCalls:
    """``channels.services.Calls``: the same table of methods as ``/v1``."""

    service: Service
    gate: Gate | None = None

    async def call(
        self, principal: Principal, method: str, data: JsonObject, idem: str | None
    ) -> JsonObject:
        """Carries out one method."""
        return await call(self.service, Caller(principal, "channel", idem), method, data, self.gate)

    def foresee(self, principal: Principal, method: str, data: JsonObject) -> None:
        """Reads ahead what an answer is about."""
        action = data.get("actionId")
        if method == ANSWERING and isinstance(action, str):
            self.service.actions.read_ahead(action, name_list(principal))
