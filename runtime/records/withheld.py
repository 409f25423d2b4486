"""Answers to a request for a credential: sent to the agent, and never stored readable (A2A 1.0 section 7.6).

The content of such a message is sealed from its arrival until the agent has it, or will not get it. Its turn has a
placeholder instead, and so have history, streams, lists and archives. Without a configured ``secret_key`` the seal
belongs to this process: a message not sent before the process ends is lost, and the agent's request is asked again.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

import orjson

from passerelle.a2a_mapping.members import object_at, objects_at
from passerelle.core.errors import ConfigInvalid
from passerelle.core.frozen import frozen
from passerelle.core.wire.record import value
from passerelle.runtime.common.sealer import KEY_BYTES, Sealer, make_sealer
from passerelle.runtime.records.message_summary import read_options

if TYPE_CHECKING:
    from passerelle.core.commands import SubmitTurn
    from passerelle.core.ids import Shard
    from passerelle.core.ports.blobs import Copies
    from passerelle.core.wire.json import Json, JsonObject
    from passerelle.runtime.common.sealer import Draw

WITHHELD: Final = "withheld"


@value
class Withheld:
    """A message as it is sent to the agent, with its options."""

    message: JsonObject
    options: JsonObject


@frozen
class Withholding:
    """Seals withheld messages, and opens them for the driver that sends them."""

    sealer: Sealer
    blobs: Copies

    async def withhold(self, command: SubmitTurn, shard: Shard, turn_id: str) -> SubmitTurn:
        """Returns the command with a placeholder message; the sealed message is stored as a blob for the turn."""
        plain = orjson.dumps([command.message, read_options(command) or {}])
        sealed = await self.blobs.put(shard, self.sealer.seal(plain, turn_id))
        blank: JsonObject = {
            name: said
            for name, said in command.message.items()
            if name in {"messageId", "role", "taskId", "contextId"}
        }
        blank["parts"] = [{"text": WITHHELD, "metadata": {WITHHELD: True}}]
        return replace(command, message=blank, params=None, sealed=sealed)

    async def read(self, shard: Shard, sealed: str, turn_id: str) -> Withheld | None:
        """The withheld message; None once it is removed, or if its key is not known here."""
        content = await self.blobs.get(shard, sealed)
        if content is None:
            return None
        try:
            opened: list[Json] = orjson.loads(self.sealer.unseal(content, turn_id))
        except ConfigInvalid:
            return None
        match opened:
            case [dict() as message, dict() as options]:
                return Withheld(message, options)
            case _:
                return None

    async def forget(self, shard: Shard, sealed: str, now_ms: int) -> None:
        """Removes a withheld message."""
        await self.blobs.expire(shard, sealed, now_ms + 1)


def is_withheld(message: JsonObject) -> bool:
    """Whether a message is a placeholder."""
    parts = objects_at(message, "parts")
    return any(WITHHELD in object_at(part, "metadata") for part in parts)


def make_withholding(sealer: Sealer | None, blobs: Copies, draw: Draw) -> Withholding:
    """Uses the configured sealer, or one whose key ends with this process."""
    own = sealer or make_sealer([draw(KEY_BYTES * 8).to_bytes(KEY_BYTES)], draw)
    return Withholding(own, blobs)
