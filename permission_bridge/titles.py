"""The line that people read first: ours in front, then what would be done, then the words of whoever asks.

It begins with our own sentence, so nothing that a peer says can pose as one. The tool with its main arguments comes
next, numbers first, since these are what two questions of one tool differ in. The words stand in quotation marks. All
of it is one printable line, and each piece has a bound.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from passerelle.core.approval.guards import TITLE_LIMIT
from passerelle.core.wire.display import escape_line

if TYPE_CHECKING:
    from collections.abc import Iterator

    from passerelle.core.approval.prompt import PeerPrompt
    from passerelle.core.payloads.approval import ActionKind, ActionType
    from passerelle.core.wire.json import Json, JsonObject

_NAME_ROOM: Final = 40
"""Of whoever asks, where there is more to say."""
_TOOL_ROOM: Final = 32
_VALUE_ROOM: Final = 24
_LEAST_ROOM: Final = 6
"""Of a piece in quotation marks: less would say nothing."""
_ARGUMENTS: Final = 4

_PHRASES: Final[dict[ActionType, str]] = {
    "delegation": "to pass work on",
    "inbound_call": "to be called",
    "tool_call": "to run a tool",
    "command": "to run a command",
    "file_change": "to change files",
    "network": "to use the network",
    "process": "to control a process",
    "credential": "to use a credential",
    "cancel_task": "to cancel a task",
    "policy_change": "to change the policy",
    "device_pairing": "to pair a device",
    "free_input": "to go on",
}
_NAMES: Final = ("name", "tool")
_TARGETS: Final = ("command", "path", "host", "url")


def make_title(
    kind: ActionKind, action_type: ActionType, peer: str, prompt: PeerPrompt | None = None
) -> str:
    """One printable line of at most ``TITLE_LIMIT`` characters; ``prompt`` says what is asked."""
    phrase = _PHRASES[action_type]
    wants = {
        "permission": f"asks for permission {phrase}",
        "confirmation": f"asks for a confirmation {phrase}",
        "input": "asks for an answer",
        "auth": "asks for an authorization",
    }[kind]
    act = _describe_act(prompt.subject or {}) if prompt is not None else ""
    words = escape_line(prompt.text or "") if prompt is not None else ""
    room = _NAME_ROOM if act or words else TITLE_LIMIT
    name = cut(escape_line(peer), min(room, TITLE_LIMIT - len(wants) - 1))
    title = f"{name} {wants}"
    if act:
        title = f"{title}: {cut(act, TITLE_LIMIT - len(title) - 2)}"
    return quote(title, words)


def quote(title: str, words: str) -> str:
    """``title`` with the words behind it, as many as fit; they cannot end their quotation marks."""
    line = escape_line(words).replace("“", '"').replace("”", '"')
    room = TITLE_LIMIT - len(title) - 3
    return f"{title} “{cut(line, room)}”" if line and room >= _LEAST_ROOM else title


def cut(text: str, room: int) -> str:
    """The beginning of a text; a mark says that there is more."""
    return text if len(text) <= room else f"{text[: max(room - 1, 0)]}…"


def _describe_act(subject: JsonObject) -> str:
    """The tool and its arguments, or the command, path or host; nothing of what is not text or number."""
    tool = next((escape_line(one) for key in _NAMES if (one := _read_text(subject, key))), "")
    args = subject.get("arguments", subject.get("args"))
    listed = ", ".join(_list_arguments(args if isinstance(args, dict) else {}))
    if tool:
        return f"{cut(tool, _TOOL_ROOM)}({listed})" if listed else cut(tool, _TOOL_ROOM)
    target = next((one for key in _TARGETS if (one := _read_text(subject, key))), "")
    if target:
        return escape_line(target)
    return listed if "arguments" in subject else ", ".join(_list_arguments(subject))


def _list_arguments(args: JsonObject) -> Iterator[str]:
    scalars = [(name, one) for name, one in args.items() if isinstance(one, str | int | float)]
    # What differs between two payments is the number; a long text must not push it out.
    scalars.sort(key=lambda pair: isinstance(pair[1], str))
    for name, one in scalars[:_ARGUMENTS]:
        yield f"{cut(escape_line(name), _VALUE_ROOM)}: {cut(_show(one), _VALUE_ROOM)}"
    if len(args) > min(len(scalars), _ARGUMENTS):
        yield "…"


def _show(scalar: str | float) -> str:
    match scalar:
        case str():
            return escape_line(scalar)
        case bool():
            return "true" if scalar else "false"
        case _:
            return str(scalar)


def _read_text(subject: JsonObject, key: str) -> str:
    found: Json = subject.get(key)
    if isinstance(found, list):
        return " ".join(one for one in found if isinstance(one, str))
    return found if isinstance(found, str) else ""
