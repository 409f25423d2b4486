"""A yes-or-no question about one tool call, which most frameworks ask, each in its own form."""

from __future__ import annotations

from typing import Final

from passerelle.a2a_mapping.dialects.display import escape_text, escape_value
from passerelle.a2a_mapping.dialects.pause import AgentPause, identify_occurrence, is_lossy
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
