"""Push notification configs on the A2A face, and extended cards: its optional parts.

Without one of them the face answers that the operation is not supported.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, cast

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
from passerelle.core.frozen import frozen

if TYPE_CHECKING:
    from passerelle.core.push import PushConfig
    from passerelle.core.wire.json import JsonObject
    from passerelle.gateway.a2a.operations import OperationCall


class PushOperations(Protocol):
    """Push notification configs by (task, config id). Params and results are 1.0 JSON in any version.

    ``call.params`` have the task as ``taskId`` and the config as ``id``, wherever the binding carries them.
    """

    async def create(self, call: OperationCall) -> JsonObject:
        """Stores a config of a task and returns it with its id."""
        ...

    async def get(self, call: OperationCall) -> JsonObject:
        """Returns one config."""
        ...

    async def list(self, call: OperationCall) -> JsonObject:
        """Returns ``{"configs": […], "nextPageToken": ""}``."""
        ...

    async def delete(self, call: OperationCall) -> JsonObject:
        """Deletes a config; a missing one is no error. Returns an empty object."""
        ...

    def read(self, call: OperationCall, config: JsonObject) -> PushConfig:
        """Checks a config that arrives inside a message; it is stored together with the message.

        Raises:
            InvalidInput: a field is malformed; the error names it.
        """
        ...


class ExtendedCards(Protocol):
    """The card of an agent as one caller may see it."""

    async def render(self, call: OperationCall) -> JsonObject:
        """The card, in the form of ``call.version``.

        Raises:
            UnsupportedOperation: this gateway has no extended cards.
            ExtendedCardNotConfigured: the agent announces one and has none.
        """
        ...


_INLINE: str = "configuration.taskPushNotificationConfig."


@frozen
class ServicePush:
    """``PushOperations`` as commands and queries of the service object."""

    service: CommandService

    async def create(self, call: OperationCall) -> JsonObject:
        task, config = read_create(call.params, call.version)
        command = SetPushConfig(task, config, call.agent)
        result = await self.service.execute(call.principal, command, call.idem)
        return cast("PushConfigSet", result).config

    async def get(self, call: OperationCall) -> JsonObject:
        name = read_name(call.params)
        query = GetPushConfig(name.task, name.id, call.agent)
        return await self.service.read(call.principal, query)

    async def list(self, call: OperationCall) -> JsonObject:
        page = read_page(call.params)
        query = ListPushConfigs(page.task, call.agent, page.page_size, page.page_token)
        return await self.service.read(call.principal, query)

    async def delete(self, call: OperationCall) -> JsonObject:
        name = read_name(call.params)
        if name.id is None:
            raise InvalidInput("id", "is required")
        command = DeletePushConfig(name.task, name.id, call.agent)
        await self.service.execute(call.principal, command, call.idem)
        return {}

    def read(self, call: OperationCall, config: JsonObject) -> PushConfig:
        return read_config(config, call.version, _INLINE)
