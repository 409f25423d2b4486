"""Push notification configs on the face: commands and queries of the service object in A2A 1.0 JSON."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from passerelle.a2a_mapping.push import read_config, read_create, read_name, read_page
from passerelle.core.commands import (
    CommandService,
    DeletePushConfig,
    GetPushConfig,
    ListPushConfigs,
    PushConfigSet,
    SetPushConfig,
)
from passerelle.core.errors import InvalidInput

if TYPE_CHECKING:
    from passerelle.core.push import PushConfig
    from passerelle.core.wire.json import JsonObject
    from passerelle.gateway.a2a.operations import Call

_INLINE: str = "configuration.taskPushNotificationConfig."


@dataclass(frozen=True, slots=True)
class ServicePush:
    """``PushConfigs`` of the face over the service object."""

    service: CommandService

    async def create(self, call: Call) -> JsonObject:
        task, config = read_create(call.params, call.version)
        command = SetPushConfig(task, config, call.agent)
        result = await self.service.execute(call.principal, command, call.idem)
        return cast("PushConfigSet", result).config

    async def get(self, call: Call) -> JsonObject:
        name = read_name(call.params)
        query = GetPushConfig(name.task, name.id, call.agent)
        return await self.service.read(call.principal, query)

    async def list(self, call: Call) -> JsonObject:
        page = read_page(call.params)
        query = ListPushConfigs(page.task, call.agent, page.page_size, page.page_token)
        return await self.service.read(call.principal, query)

    async def delete(self, call: Call) -> JsonObject:
        name = read_name(call.params)
        if name.id is None:
            raise InvalidInput("id", "is required")
        command = DeletePushConfig(name.task, name.id, call.agent)
        await self.service.execute(call.principal, command, call.idem)
        return {}

    def read(self, call: Call, config: JsonObject) -> PushConfig:
        return read_config(config, call.version, _INLINE)
