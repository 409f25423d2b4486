"""An agent that requests approval in the gateway's own form, as a script of the scripted peer."""

from __future__ import annotations

from typing import Final, cast

from passerelle.a2a_mapping.extensions import PERMISSION
from passerelle.core.wire.json import Json, JsonObject
from tests.support.scripted_tasks import Turn, TurnScript

SUBJECT: Final[JsonObject] = {
    "type": "tool_call",
    "name": "pay",
    "arguments": {"amount": 42, "to": "Ada"},
}


def ask_leave(
    name: str = "pay-1",
    subject: JsonObject = SUBJECT,
    state: str = "INPUT_REQUIRED",
    **more: Json,
) -> TurnScript:
    """A script that requests approval in the gateway's own form."""

    async def ask(turn: Turn) -> None:
        form: JsonObject = {
            "action_id": name,
            "rev": 1,
            "digest": f"sha256:{name}",
            "kind": "permission",
            "title": "Pay a bill",
            "subject": subject,
            "options": [
                {"option_id": "pay", "name": "Pay", "kind": "allow_once"},
                {"option_id": "leave", "name": "Do not pay", "kind": "reject_once"},
            ],
            **more,
        }
        await turn.status(state, parts=[{"data": {PERMISSION: form}}])

    return ask


def read_answer(message: JsonObject) -> JsonObject:
    """The typed answer that the agent received."""
    [part] = cast("list[JsonObject]", message["parts"])
    return cast("JsonObject", cast("JsonObject", part["data"])[PERMISSION])
