"""The gateway's own extension ``urn:passerelle:ext:permission:1``: a typed question, and a typed answer.

A question is a data part ``{URI: {action_id, rev, digest, kind, title, subject, options, expires_at, risk}}`` on a
waiting status. An answer is a data part ``{URI: {action_id, rev, digest, decision_id, option_id, comment}}`` that names
exactly what was read. A data part with the URI that is not well-formed does not match this dialect: it falls through to
plain text, which cannot approve.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, cast, get_args

from passerelle.a2a_mapping.dialects.display import escape_text, escape_value
from passerelle.a2a_mapping.dialects.pause import (
    AgentPause,
    DecidedQuestion,
    encode_parts,
    identify_occurrence,
    is_lossy,
)
from passerelle.a2a_mapping.dialects.plain_text import NO_CONSENT
from passerelle.a2a_mapping.extensions import PERMISSION
from passerelle.a2a_mapping.members import object_at, objects_at, text_at, whole_at
from passerelle.core.approval.prompt import PeerAnswer, PeerPrompt
from passerelle.core.payloads.approval import ActionKind, ActionType, Option, OptionKind, Risk
from passerelle.core.wire.json import JsonObject
from passerelle.core.wire.times import parse_ms

NAME: Final = "permission"
TITLE_LIMIT: Final = 120
_KINDS: Final[tuple[str, ...]] = get_args(ActionKind)
_OPTION_KINDS: Final[tuple[str, ...]] = get_args(OptionKind)
_ACTION_TYPES: Final[tuple[str, ...]] = get_args(ActionType)
_RISKS: Final[tuple[str, ...]] = get_args(Risk)
_ALLOWING: Final = ("allow_once", "allow_always", "answer")
_SEPARATOR: Final = " "


def detect(pause: AgentPause) -> list[PeerPrompt]:
    """Every well-formed question in the status message, in order; several are a group."""
    forms = [
        form
        for part in objects_at(pause.message, "parts")
        if (form := object_at(object_at(part, "data"), PERMISSION))
    ]
    prompts = [_read_form(pause, form) for form in forms]
    # An unreadable one could not be answered, and one message must answer the whole pause.
    return [prompt for prompt in prompts if prompt] if all(prompts) else []


def encode(replies: Sequence[DecidedQuestion], task: str, context: str) -> JsonObject | None:
    """One message with a typed answer per question; None if a rejection is due but not offered: cancel the task."""
    message = encode_parts(replies, (task, context), _write_part)
    return None if message is None else {**message, "extensions": [PERMISSION]}


def _write_part(reply: DecidedQuestion) -> JsonObject | None:
    form = _write_form(reply)
    return None if form is None else {"data": {PERMISSION: form}}


def _read_form(pause: AgentPause, form: JsonObject) -> PeerPrompt | None:
    kind, native_id = text_at(form, "kind"), _read_native_id(form)
    options = _read_options(form)
    if native_id is None or kind not in _KINDS or not options:
        return None
    subject = object_at(form, "subject")
    lossy = is_lossy(subject)
    if lossy:
        options = tuple(option for option in options if option.kind not in _ALLOWING)
    action_type, risk = text_at(subject, "type"), text_at(form, "risk")
    title = escape_text(text_at(form, "title").replace("\n", " "), TITLE_LIMIT)
    shown = escape_value(subject)
    return PeerPrompt(
        dialect=NAME,
        occurrence=identify_occurrence(pause, native_id),
        native_status=pause.native_status,
        kind=cast("ActionKind", kind),
        action_type=cast(
            "ActionType", action_type if action_type in _ACTION_TYPES else "tool_call"
        ),
        options=options,
        native_id=native_id,
        message_id=pause.message_id,
        text="\n".join(text for text in (title, pause.text) if text) or None,
        subject=shown if isinstance(shown, dict) else {},
        response_schema=object_at(form, "response_schema") or None,
        risk=cast("Risk", risk) if risk in _RISKS else None,
        destructive=form.get("destructive") is True,
        lossy=lossy,
        expires_ms=_read_expiry(form),
    )


def _read_native_id(form: JsonObject) -> str | None:
    """The members that an answer must name, in one text: action id, revision, digest."""
    action_id, rev, digest = (
        text_at(form, "action_id"),
        whole_at(form, "rev"),
        text_at(form, "digest"),
    )
    if rev is None or not action_id or not digest or _SEPARATOR in action_id + digest:
        return None
    return _SEPARATOR.join((action_id, str(rev), digest))


def _read_options(form: JsonObject) -> tuple[Option, ...]:
    options: list[Option] = []
    for item in objects_at(form, "options"):
        option_id, kind = text_at(item, "option_id"), text_at(item, "kind")
        if not option_id or kind not in _OPTION_KINDS:
            return ()
        name = escape_text(text_at(item, "name").replace("\n", " "), TITLE_LIMIT)
        options.append(Option(option_id, name or option_id, cast("OptionKind", kind)))
    distinct = {option.option_id for option in options}
    return tuple(options) if len(distinct) == len(options) else ()


def _read_expiry(form: JsonObject) -> int | None:
    try:
        return parse_ms(text_at(form, "expires_at"))
    except ValueError:
        return None


def _write_form(reply: DecidedQuestion) -> JsonObject | None:
    action_id, rev, digest = (reply.prompt.native_id or "").split(_SEPARATOR)
    option = choose_option(reply.prompt.options, reply.answer)
    if option is None:
        return None
    form: JsonObject = {
        "action_id": action_id,
        "rev": int(rev),
        "digest": digest,
        "decision_id": reply.decision_id,
        "option_id": option.option_id,
        "comment": reply.answer.text if reply.answer.reason != "timeout" else NO_CONSENT,
    }
    if reply.answer.allowed and reply.answer.content is not None:
        form["content"] = reply.answer.content
    return form


def choose_option(options: Sequence[Option], answer: PeerAnswer) -> Option | None:
    """The agent's option for the decision, and no wider one.

    "Allow always" is a grant in the gateway: the agent gets a single allow if it offers one. A rejection is only ever
    sent as an option that rejects.
    """
    kinds: tuple[OptionKind, ...] = (
        ("allow_once", "answer", "allow_always")
        if answer.allowed
        else ("reject_once", "reject_always")
    )
    fitting = sorted(
        (option for option in options if option.kind in kinds),
        key=lambda option: kinds.index(option.kind),
    )
    named = [option for option in fitting if option.option_id == answer.option_id]
    if named and named[0].kind != "allow_always":
        return named[0]
    return fitting[0] if fitting else None
