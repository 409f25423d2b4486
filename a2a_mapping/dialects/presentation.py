"""The gateway's approvals towards A2A callers: shown on a waiting status, answered by a typed part.

The caller gets a text for people and a data part for programs. Only the data part decides; a plain "yes" on a
permission is a remark.
"""

from __future__ import annotations

from dataclasses import replace

from passerelle.a2a_mapping.extensions import PERMISSION
from passerelle.a2a_mapping.identity import Relabel, scrub_value
from passerelle.a2a_mapping.members import object_at, objects_at, read_text, require_text, whole_at
from passerelle.core.approval.prompt import PeerPrompt
from passerelle.core.commands import RespondAction
from passerelle.core.errors import InvalidInput
from passerelle.core.payloads.approval import ApprovalRequest
from passerelle.core.wire.json import Json, JsonObject
from passerelle.core.wire.times import format_ms


def relabel_prompt(prompt: PeerPrompt, ids: Relabel) -> PeerPrompt:
    """A question with facade ids in its texts, fit to be shown. Members for the answer stay unchanged."""
    subject = scrub_value(prompt.subject, ids)
    return replace(
        prompt,
        text=None if prompt.text is None else ids.scrub(prompt.text),
        subject=subject if isinstance(subject, dict) else None,
        options=tuple(replace(option, name=ids.scrub(option.name)) for option in prompt.options),
    )


def list_request_parts(request: ApprovalRequest, rev: int) -> list[Json]:
    """The parts of a status message that shows ``request``; the agent's text comes last."""
    text = request.title
    if request.description:
        text = f"{text}\n\n{request.description}"
    if request.peer_message:
        text = f"{text}\n\nThe agent says:\n{request.peer_message}"
    form: JsonObject = {
        "action_id": request.action_id,
        "rev": rev,
        "digest": request.digest,
        "kind": request.kind,
        "title": request.title,
        "subject": request.subject,
        "options": [
            {"option_id": option.option_id, "name": option.name, "kind": option.kind}
            for option in request.options
        ],
        "expires_at": format_ms(request.expires_ms),
        "risk": request.risk,
    }
    if request.response_schema is not None:
        form["response_schema"] = request.response_schema
    return [{"text": text}, {"data": {PERMISSION: form}}]


def show_parts(
    frame: JsonObject,
    parts: list[Json] | None,
    state: str | None,
    own: JsonObject,
    *,
    with_native: bool = False,
) -> JsonObject:
    """A copy of a task or status frame, with ``parts`` instead of the agent's and in ``state`` if given.

    ``own`` is the message that holds them if the agent's status has none.

    ``with_native`` keeps the agent's native parts after them, byte for byte: a caller that knows the form can answer
    in it. Their text is already in the gateway's parts.
    """
    for name in ("task", "statusUpdate"):
        if name in frame:
            holder = object_at(frame, name)
            status = object_at(holder, "status")
            shown: JsonObject = dict(status)
            if parts is not None:
                message = object_at(status, "message") or own
                native = [part for part in objects_at(message, "parts") if "text" not in part]
                shown["message"] = {**message, "parts": [*parts, *native] if with_native else parts}
            if state is not None:
                shown["state"] = state
            return {name: {**holder, "status": shown}}
    return frame


def read_decision(message: JsonObject) -> RespondAction | None:
    """The typed answer in a caller's message, or None if it has none.

    Raises:
        InvalidInput: it is malformed, or there are several; naming the field.
    """
    forms = [
        (f"message.parts[{index}].data.{PERMISSION}.", form)
        for index, part in enumerate(objects_at(message, "parts"))
        if (form := object_at(object_at(part, "data"), PERMISSION))
    ]
    if not forms:
        return None
    if len(forms) > 1:
        raise InvalidInput("message.parts", "holds more than one decision")
    path, form = forms[0]
    rev = whole_at(form, "rev")
    if rev is None:
        raise InvalidInput(path + "rev", "must be a whole number")
    content = form.get("content")
    if content is not None and not isinstance(content, dict):
        raise InvalidInput(path + "content", "must be an object")
    return RespondAction(
        action_id=require_text(form, "action_id", path),
        rev=rev,
        digest=require_text(form, "digest", path),
        decision_id=require_text(form, "decision_id", path),
        option_id=read_text(form, "option_id", path),
        content=content,
        comment=read_text(form, "comment", path),
    )
