"""Turns an agent's prompt into an approval request: a title, escaped content, and a digest that binds the decision.

The title is the line that approvers read first. It begins with the gateway's own sentence, so that no text of an agent
can pose as one. The tool with its main arguments comes next, numbers first, since those distinguish two requests of one
tool. The agent's own words follow in quotation marks. The title is one printable line, and each part is bounded.

Content that cannot be shown completely, or may have lost digits, cannot be allowed: the allow options are left out, and
the request gives the reason. "Always" creates a grant, and is offered only if the settings say so; an agent's own
"always" is never passed on.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from passerelle.core.approval.guards import MAX_LIFETIME_MS, TITLE_LIMIT
from passerelle.core.approval.prompt import PeerPrompt
from passerelle.core.approval.response_schema import TEXT_SCHEMA, check_schema
from passerelle.core.errors import InvalidInput
from passerelle.core.facts import Scope
from passerelle.core.frozen import frozen
from passerelle.core.payloads.approval import (
    ActionKind,
    ApprovalRequest,
    GrantOffer,
    OnTimeout,
    Origin,
    RemotePause,
    Risk,
)
from passerelle.core.wire.canonical import canonicalize
from passerelle.core.wire.display import escape_line
from passerelle.core.wire.json import JsonObject
from passerelle.permission_bridge.approvers import Tier
from passerelle.permission_bridge.options import WORDS, add_always, choose_options
from passerelle.permission_bridge.policy import Evaluation
from passerelle.permission_bridge.subject import show_subject
from passerelle.permission_bridge.views import seal_request

if TYPE_CHECKING:
    from collections.abc import Iterator

    from passerelle.core.payloads.approval import ActionType
    from passerelle.core.wire.json import Json

_NAME_ROOM: Final = 40
"""Bound of the agent's name in a title that has more parts."""
_TOOL_ROOM: Final = 32
_VALUE_ROOM: Final = 24
_LEAST_ROOM: Final = 6
"""Minimum for quoted text: a shorter quotation would tell nothing."""
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
    """One printable line of at most ``TITLE_LIMIT`` characters; ``prompt`` has the content."""
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
    """``title`` followed by as much of ``words`` as fits; ``words`` cannot close their quotation marks."""
    line = escape_line(words).replace("“", '"').replace("”", '"')
    room = TITLE_LIMIT - len(title) - 3
    return f"{title} “{cut(line, room)}”" if line and room >= _LEAST_ROOM else title


def cut(text: str, room: int) -> str:
    """The beginning of a text; an ellipsis marks truncation."""
    return text if len(text) <= room else f"{text[: max(room - 1, 0)]}…"


def _describe_act(subject: JsonObject) -> str:
    """The tool and its arguments, or the command, path or host; only texts and numbers."""
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
    # Two payments differ in the number; a long text must not push it out of the title.
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


MINUTE_MS: Final = 60_000
SCHEMA_LIMIT_BYTES: Final = 1536
LIFETIME_MS: Final[dict[Risk, int]] = {
    "low": 15 * MINUTE_MS,
    "medium": 60 * MINUTE_MS,
    "high": 240 * MINUTE_MS,
    "critical": 240 * MINUTE_MS,
}
DELEGATION_LIFETIME_MS: Final = 24 * 60 * MINUTE_MS

_ON_TIMEOUT: Final[dict[ActionKind, OnTimeout]] = {
    "permission": "reject",
    "confirmation": "reject",
    "input": "keep_waiting",
    "auth": "cancel_task",
}


@frozen
class Asking:
    """The task that waits, and its owner.

    ``owner`` is the key of the principal who decides, ``principal`` the id of the one for whom the work is done.
    ``scope`` has the ids of the task and its run. ``peer`` is the configured name.
    """

    action_id: str
    owner: str
    tenant: str
    principal: str
    peer: str
    scope: Scope
    card_hash: str | None = None
    group_id: str | None = None
    offer: GrantOffer | None = None
    """The grant that approvers may give instead of a single approval."""
    tier: Tier | None = None
    """The approvers; None: the owner."""


def make_request(
    prompt: PeerPrompt, asking: Asking, evaluation: Evaluation, now_ms: int
) -> ApprovalRequest:
    """The approval request, ready to be opened at ``now_ms``."""
    shown = show_subject(prompt)
    schema, schema_reason = _read_schema(prompt)
    reasons = (*evaluation.risk_reasons, *shown.doubts, *schema_reason)
    request = ApprovalRequest(
        action_id=asking.action_id,
        kind=prompt.kind,
        action_type=prompt.action_type,
        title=make_title(prompt.kind, prompt.action_type, asking.peer, prompt),
        owner=asking.owner,
        tenant=asking.tenant,
        principal=asking.principal,
        origin=Origin("outbound", "peer", asking.peer, asking.card_hash),
        options=add_always(
            choose_options(prompt, shown, answerable=not schema_reason), asking.offer
        ),
        digest="",
        risk=evaluation.risk,
        on_timeout=_ON_TIMEOUT[prompt.kind],
        created_ms=now_ms,
        expires_ms=choose_expiry(prompt, evaluation.risk, now_ms),
        policy_version=evaluation.policy_version,
        evaluation_id=evaluation.evaluation_id,
        subject=shown.subject,
        peer_message=shown.message,
        remote=RemotePause(
            dialect=prompt.dialect,
            native_id=prompt.native_id,
            occurrence=prompt.occurrence,
            native_status=prompt.native_status,
            message_id=prompt.message_id,
            said_at=prompt.said_at,
        ),
        response_schema=schema,
        destructive=prompt.destructive,
        group_id=asking.group_id,
        risk_reasons=reasons,
    )
    if asking.tier is not None and prompt.kind not in WORDS:
        audience = asking.tier.list_audience(asking.principal)
        request = replace(request, quorum=asking.tier.quorum, audience=audience)
    return seal_request(request, asking.scope)


def choose_expiry(prompt: PeerPrompt, risk: Risk, now_ms: int) -> int:
    """The expiry: by risk, for input the maximum lifetime, and never after the agent's own expiry."""
    if prompt.kind == "input":
        lifetime = MAX_LIFETIME_MS
    elif prompt.action_type == "delegation":
        lifetime = DELEGATION_LIFETIME_MS
    else:
        lifetime = LIFETIME_MS[risk]
    ends = now_ms + lifetime
    if prompt.expires_ms is not None:
        # A request that has expired already is still opened, and expires at once: none is dropped without a record.
        ends = max(now_ms + 1, min(ends, prompt.expires_ms))
    return ends


def _read_schema(prompt: PeerPrompt) -> tuple[JsonObject | None, tuple[str, ...]]:
    """The schema for free-text answers, or the reason why the agent's schema cannot be used."""
    if prompt.kind not in WORDS:
        return None, ()
    if prompt.response_schema is None:
        return TEXT_SCHEMA, ()
    try:
        check_schema(prompt.response_schema)
        is_large = len(canonicalize(prompt.response_schema)) > SCHEMA_LIMIT_BYTES
    except InvalidInput:
        is_large = True
    if is_large:
        # No text of the schema in this message: the schema is the agent's, the message is the gateway's.
        return None, ("answers could not be validated: the schema is not small and flat",)
    return prompt.response_schema, ()
