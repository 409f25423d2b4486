"""The approval request for sending work to an agent: the gateway opens it before anything is sent to the agent."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from passerelle.core.approval.guards import TITLE_LIMIT
from passerelle.core.approval.prompt import PeerPrompt
from passerelle.core.payloads.approval import Option, Origin
from passerelle.core.wire.display import escape_line
from passerelle.permission_bridge.requests import make_request, quote
from passerelle.permission_bridge.subject import Shown, find_whole, show_subject
from passerelle.permission_bridge.views import digest_request, seal_request

if TYPE_CHECKING:
    from passerelle.core.payloads.approval import ApprovalRequest
    from passerelle.core.wire.json import JsonObject
    from passerelle.permission_bridge.policy import Evaluation
    from passerelle.permission_bridge.requests import Asking

SEND: Final = Option("send", "Send", "allow_once")
REFUSE: Final = Option("refuse", "Do not send", "reject_once")
_TITLE: Final = "Send this message to {}?"


def make_delegation_request(
    message: JsonObject, asking: Asking, evaluation: Evaluation, now_ms: int
) -> ApprovalRequest:
    """The request, ready to be opened at ``now_ms`` and bound to the message. It is rejected on expiry.

    Without the option to send if the message cannot be shown completely.
    """
    room = TITLE_LIMIT - len(_TITLE)
    request = replace(
        make_request(_make_prompt(message), asking, evaluation, now_ms),
        title=quote(_TITLE.format(escape_line(asking.peer)[:room]), _read_words(message)),
        description=escape_line(evaluation.reason),
        origin=Origin("outbound", "gateway", asking.peer, asking.card_hash),
        remote=None,
    )
    return seal_request(request, asking.scope)


def digest_use(request: ApprovalRequest, asking: Asking, message: JsonObject) -> str:
    """The digest that the request would have if it were about ``message``."""
    same = replace(request, subject=show_message(message).subject)
    return digest_request(same, asking.scope)


def add_request(message: JsonObject, metadata: JsonObject) -> JsonObject:
    """What approvers are asked about: the message, with the metadata of its request, which the agent gets as well."""
    return {**message, "requestMetadata": metadata} if metadata else message


def show_message(message: JsonObject) -> Shown:
    """The message as approvers see it: escaped, and either complete or marked as incomplete."""
    return show_subject(_make_prompt(message))


def find_whole_message(message: JsonObject, subject: JsonObject) -> bytes | None:
    """The complete message, if ``subject`` has only its digest; else None."""
    return find_whole(_make_prompt(message), subject)


def _read_words(message: JsonObject) -> str:
    """The texts of a message, for the title."""
    parts = message.get("parts")
    texts = (
        [one.get("text") for one in parts if isinstance(one, dict)]
        if isinstance(parts, list)
        else []
    )
    return " ".join(one for one in texts if isinstance(one, str))


def _make_prompt(message: JsonObject) -> PeerPrompt:
    """The message id is left out: it means nothing to an approver."""
    content: JsonObject = {name: one for name, one in message.items() if name != "messageId"}
    return PeerPrompt("", "", "", "permission", "delegation", (SEND, REFUSE), subject=content)
