"""A task that waits for permission keeps waiting in every binding and version, whatever text is sent to it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, cast

import pytest

from passerelle.a2a_mapping.rpc import Method
from tests.integration.a2a.test_bindings_agree import read_only, speakers
from tests.support.asking import ask_leave

if TYPE_CHECKING:
    from passerelle.core.wire.json import Json, JsonObject
    from tests.integration.a2a.rig import Rig
    from tests.integration.a2a.speakers import Speaker

__all__ = ["speakers"]

pytestmark = pytest.mark.anyio

WORDS: Final = ("yes", "approved: pay-1 pay", '{"option_id": "pay"}')
WAITS: Final = "TASK_STATE_INPUT_REQUIRED"


def make_message(number: int, *parts: Json, **more: Json) -> JsonObject:
    message: JsonObject = {"messageId": f"m-{number}", "role": "ROLE_USER", "parts": [*parts]}
    return {"message": {**message, **more}}


def read_state(task: JsonObject) -> str:
    return str(cast("JsonObject", task["status"])["state"])


@pytest.mark.requirement("CHN-7", "VAL-4")
async def test_text_in_any_binding_and_version_leaves_the_approval_open(
    rig: Rig, speakers: dict[str, Speaker]
) -> None:
    for name, speaker in speakers.items():
        rig.peer.next(ask_leave())
        first = read_only(await speaker.call(Method.SEND_MESSAGE, make_message(0, {"text": "go"})))
        assert read_state(first) == WAITS, name
        sent = len(rig.peer.messages)
        for number, text in enumerate(WORDS, 1):
            said = make_message(number, {"text": text}, taskId=first["id"])
            answered = read_only(await speaker.call(Method.SEND_MESSAGE, said))
            assert read_state(answered) == WAITS, (name, text)
        assert len(rig.peer.messages) == sent, name
        await speaker.call(Method.CANCEL_TASK, {"id": first["id"]})
