"""What the face hands on beside turns and tasks: optional parts, without which it says that there is no such thing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from passerelle.core.push import PushConfig
    from passerelle.core.wire.json import JsonObject
    from passerelle.gateway.a2a.operations import Call


class PushConfigs(Protocol):
    """Push notification configs by (task, config id). Params and results are 1.0 JSON, whatever the caller speaks.

    ``call.params`` name the task as ``taskId`` and the config as ``id``, wherever the binding carries them.
    """

    async def create(self, call: Call) -> JsonObject:
        """Keeps a config of a task and returns it, its id filled in."""
        ...

    async def get(self, call: Call) -> JsonObject:
        """One config."""
        ...

    async def list(self, call: Call) -> JsonObject:
        """``{"configs": […], "nextPageToken": ""}``."""
        ...

    async def delete(self, call: Call) -> JsonObject:
        """Forgets a config; one that is not there is as good as forgotten. Returns an empty object."""
        ...

    def read(self, call: Call, config: JsonObject) -> PushConfig:
        """A config that comes with a message; it is judged and kept together with the message.

        Raises:
            InvalidInput: a field is malformed; it is named.
        """
        ...


class ExtendedCards(Protocol):
    """The card of an agent as one caller may see it."""

    async def render(self, call: Call) -> JsonObject:
        """The card, in the form of ``call.version``.

        Raises:
            UnsupportedOperation: there is no extended card here.
            ExtendedCardNotConfigured: there should be one, and there is none for this agent.
        """
        ...
