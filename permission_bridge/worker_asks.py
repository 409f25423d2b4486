"""Converts the permission request of a local worker into the common form of approval requests."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from passerelle.core.approval.prompt import PeerPrompt
from passerelle.core.errors import InvalidInput
from passerelle.core.payloads.approval import ApprovalRequest, Option, Origin
from passerelle.core.wire.canonical import canonicalize, digest
from passerelle.permission_bridge.cases import PeerAsks, read_prompt
from passerelle.permission_bridge.requests import Asking, make_request
from passerelle.permission_bridge.views import digest_request, seal_request

if TYPE_CHECKING:
    from passerelle.core.payloads.approval import ActionType, Risk
    from passerelle.core.policy.requests import Subject
    from passerelle.core.wire.json import JsonObject
    from passerelle.permission_bridge.policy import Evaluation

OPTIONS: Final = (Option("allow", "Allow", "allow_once"), Option("reject", "Reject", "reject_once"))
SUBJECT_LIMIT_BYTES: Final = 262_144


def make_prompt(
    action_type: ActionType,
    subject: Subject,
    *,
    destructive: bool = False,
    risk: Risk | None = None,
) -> PeerPrompt:
    """The prompt in the common form."""
    return PeerPrompt(
        dialect="",
        occurrence="",
        native_status="",
        kind="permission",
        action_type=action_type,
        options=OPTIONS,
        subject=subject.to_content(),
        risk=risk,
        destructive=destructive,
    )


def read_worker(prompt: PeerPrompt, caller: str, worker: str) -> PeerAsks:
    """The case of a worker's request."""
    return replace(read_prompt(prompt, caller, worker, frozenset(), None), asker="worker")


def find_fault(subject: Subject) -> str | None:
    """Why a subject cannot be evaluated: it is too large, or ambiguous for different readers."""
    try:
        size = len(canonicalize(subject.to_content()))
    except InvalidInput as wrong:
        return f"the subject {wrong.reason}"
    return "the subject is too large" if size > SUBJECT_LIMIT_BYTES else None


def make_worker_request(
    prompt: PeerPrompt,
    asking: Asking,
    evaluation: Evaluation,
    now_ms: int,
    *,
    is_command: bool = False,
) -> ApprovalRequest:
    """The approval request, ready to be opened; no agent waits for the decision, so it is not delivered anywhere."""
    request = make_request(prompt, asking, evaluation, now_ms)
    origin = Origin("local", "worker", asking.peer)
    if is_command:
        origin = Origin("control", "principal", asking.peer)
    request = replace(request, origin=origin, remote=None, subject=_bind(request, prompt))
    return seal_request(request, asking.scope)


def digest_use(
    request: ApprovalRequest, asking: Asking, prompt: PeerPrompt, evaluation: Evaluation
) -> str:
    """The digest that the request would have if it were about the action that is about to be done."""
    about = make_request(prompt, asking, evaluation, request.created_ms)
    same = replace(request, subject=_bind(about, prompt))
    return digest_request(same, asking.scope)


def _bind(request: ApprovalRequest, prompt: PeerPrompt) -> JsonObject:
    """Binds both the escaped content that is shown and the raw content that is executed."""
    try:
        raw = digest(prompt.subject or {})
    except InvalidInput:
        raw = ""
    return {**request.subject, "rawDigest": raw}
