"""The subject of an approval request, as shown and bound: escaped, and either complete or marked as incomplete.

The subject is ``{type, content, bytes, lossy, truncated, messageDigest}``. ``content`` comes from the agent, so nothing
in it can pose as a statement of the gateway. ``messageDigest`` covers the agent's message, which is shown separately.
"""

from __future__ import annotations

import hashlib
import math
from typing import Final

from passerelle.core.approval.prompt import PeerPrompt
from passerelle.core.frozen import frozen
from passerelle.core.payloads.approval import ActionType
from passerelle.core.wire.canonical import canonicalize, digest
from passerelle.core.wire.display import escape_text
from passerelle.core.wire.json import Json, JsonObject

MESSAGE_LIMIT_BYTES: Final = 3 * 1024
SUBJECT_LIMIT_BYTES: Final = 8 * 1024
"""Both as JSON. Together with the rest of a request they stay below the 16 KiB of a fact (ENV-11)."""
PREVIEW_LIMIT: Final = 2000
DEPTH_LIMIT: Final = 32
SAFE_INTEGER: Final = 2**53

_TYPES: Final[dict[ActionType, str]] = {
    "tool_call": "tool_call",
    "command": "command",
    "file_change": "file_change",
    "network": "network",
    "delegation": "delegation",
    "credential": "credential",
}


@frozen
class Shown:
    """The subject and the agent's message as shown; ``doubts`` are the reasons why the request cannot be allowed."""

    subject: JsonObject
    message: str | None
    doubts: tuple[str, ...]


def show_subject(prompt: PeerPrompt) -> Shown:
    """Everything that a prompt shows, escaped and bounded; never raises."""
    message, is_cut = _show_message(prompt.text)
    copy = _SafeCopy()
    content = copy.of(prompt.subject or {}, DEPTH_LIMIT)
    canonical = canonicalize(content)
    is_large = len(canonical) > SUBJECT_LIMIT_BYTES
    lossy = prompt.lossy or copy.is_lossy
    subject: JsonObject = {
        "type": _TYPES.get(prompt.action_type, "unknown"),
        "content": content,
        "bytes": len(canonical),
        "lossy": lossy,
        "truncated": is_large or copy.is_partial or is_cut,
    }
    if is_large:
        preview = canonical[:PREVIEW_LIMIT].decode(errors="ignore")
        subject["content"] = {"preview": preview}
        subject["contentDigest"] = f"sha256:{hashlib.sha256(canonical).hexdigest()}"
    if message is not None:
        subject["messageDigest"] = digest(message)
    doubts = {
        "the agent's message is too long and was truncated": is_cut,
        "the content is too long and is not shown completely": is_large or copy.is_partial,
        "a number may have lost digits": lossy,
    }
    return Shown(subject, message, tuple(doubt for doubt, holds in doubts.items() if holds))


def find_whole(prompt: PeerPrompt, subject: JsonObject) -> bytes | None:
    """The complete content in canonical form, if ``subject`` has only its digest; else None."""
    if "contentDigest" not in subject:
        return None
    return canonicalize(_SafeCopy().of(prompt.subject or {}, DEPTH_LIMIT))


def _show_message(text: str | None) -> tuple[str | None, bool]:
    if text is None or not text.strip():
        return None, False
    # Escaping never shortens a text, so text beyond the limit needs no check.
    shown = escape_text(text[:MESSAGE_LIMIT_BYTES])
    if len(text) <= MESSAGE_LIMIT_BYTES and len(canonicalize(shown)) <= MESSAGE_LIMIT_BYTES:
        return shown, False
    kept = canonicalize(shown)[1 : MESSAGE_LIMIT_BYTES // 2].decode(errors="ignore")
    return f"{kept} [the text is longer: {len(text)} characters]", True


class _SafeCopy:
    """Copies a value into one that can be shown and has a canonical form, and tracks what was lost."""

    def __init__(self) -> None:
        self.is_lossy = False
        self.is_partial = False

    def of(self, value: Json, depth: int) -> Json:
        """The copy; values nested deeper than ``depth`` are left out."""
        match value:
            case str():
                return escape_text(value)
            case bool() | None:
                return value
            case int() | float():
                return self._of_number(value)
            case _ if depth == 0:
                self.is_partial = True
                return "…"
            case dict():
                members = {
                    escape_text(name): self.of(member, depth - 1) for name, member in value.items()
                }
                # Two names that are equal once escaped are merged into one member.
                self.is_partial |= len(members) < len(value)
                return members
            case list():
                return [self.of(item, depth - 1) for item in value]

    def _of_number(self, value: float) -> Json:
        """Numbers beyond 2^53 lose digits in readers that use floats: they become texts, and the copy is lossy."""
        if math.isfinite(value) and abs(value) < SAFE_INTEGER:
            return value
        self.is_lossy = True
        return str(value)
