"""The questions that most frameworks ask, each in its own form: a yes or no about one tool call, words, a form."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from passerelle.a2a_mapping.dialects.display import escape_text, escape_value
from passerelle.a2a_mapping.dialects.pause import AgentPause, identify_occurrence, is_lossy
from passerelle.a2a_mapping.dialects.plain_text import CANCEL, REPLY
from passerelle.core.approval.prompt import PeerPrompt
from passerelle.core.payloads.approval import Option
from passerelle.core.wire.json import Json, JsonObject

APPROVE: Final = Option("approve", "Approve", "allow_once")
REJECT: Final = Option("reject", "Reject", "reject_once")


def make_permission_prompt(
    dialect: str,
    pause: AgentPause,
    native_id: str | None,
    tool: str,
    args: Json,
    text: str,
) -> PeerPrompt:
    """The question whether ``tool`` may run with ``args``; if digits may be lost, only a rejection is offered."""
    subject: JsonObject = {"type": "tool_call", "name": tool, "arguments": args}
    lossy = is_lossy(args)
    shown = escape_value(subject)
    return PeerPrompt(
        dialect=dialect,
        occurrence=identify_occurrence(pause, native_id),
        native_status=pause.native_status,
        kind="permission",
        action_type="tool_call",
        options=(REJECT,) if lossy else (APPROVE, REJECT),
        native_id=native_id,
        message_id=pause.message_id,
        text="\n".join(part for part in (escape_text(text), pause.text) if part) or None,
        subject=shown if isinstance(shown, dict) else subject,
        lossy=lossy,
    )


def ask_for_words(asked: PeerPrompt) -> PeerPrompt:
    """The same question, to be answered by a reply."""
    return replace(asked, kind="input", action_type="free_input", options=(REPLY, CANCEL))


def make_input_prompt(
    dialect: str, pause: AgentPause, native_id: str, tool: str, text: str, form: JsonObject | None
) -> PeerPrompt:
    """The question for words, or with ``form``, a JSON Schema, for its members."""
    asked = ask_for_words(make_permission_prompt(dialect, pause, native_id, tool, {}, text))
    return replace(asked, subject=None, response_schema=form)
