"""A form: a data part that is a JSON Schema asks for matching data, and gets exactly that.

One schema in a pause, small and flat enough to be filled in on a phone (``core/approval/response_schema``). Any other
pause does not match this dialect and is answered in text. Nor does a form under AUTH_REQUIRED match, where data could
be a secret.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from passerelle.a2a_mapping.dialects.pause import (
    AgentPause,
    DecidedQuestion,
    identify_occurrence,
    make_reply,
)
from passerelle.a2a_mapping.dialects.plain_text import CANCEL, REPLY
from passerelle.a2a_mapping.members import object_at, objects_at, text_at
from passerelle.a2a_mapping.states import INPUT_REQUIRED
from passerelle.core.approval.prompt import PeerPrompt
from passerelle.core.approval.response_schema import check_schema
from passerelle.core.errors import InvalidInput
from passerelle.core.wire.json import JsonObject

NAME: Final = "schema"
MEDIA_TYPE: Final = "application/schema+json"
ANSWER_TYPE: Final = "application/json"


def detect(pause: AgentPause) -> list[PeerPrompt]:
    """The form of the status message; empty if there are several, or it is more than a form."""
    forms = [
        object_at(part, "data")
        for part in objects_at(pause.message, "parts")
        if text_at(part, "mediaType").partition(";")[0].strip().lower() == MEDIA_TYPE
    ]
    if len(forms) != 1 or pause.native_status != INPUT_REQUIRED:
        return []
    try:
        check_schema(forms[0])
    except InvalidInput:
        return []
    return [
        PeerPrompt(
            dialect=NAME,
            occurrence=identify_occurrence(pause, None),
            native_status=pause.native_status,
            kind="input",
            action_type="free_input",
            options=(REPLY, CANCEL),
            message_id=pause.message_id,
            text=pause.text or None,
            response_schema=forms[0],
        )
    ]


def encode(replies: Sequence[DecidedQuestion], task: str, context: str) -> JsonObject | None:
    """The submitted data; None if there is none: cancel the task."""
    reply = replies[0]
    if not reply.answer.allowed or reply.answer.content is None:
        return None
    part: JsonObject = {"data": reply.answer.content, "mediaType": ANSWER_TYPE}
    return make_reply((task, context), [reply.decision_id], [part])
