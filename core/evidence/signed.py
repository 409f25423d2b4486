"""Device signatures among facts, each with the signed content and the signing key (CHN-8)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from passerelle.core.approval.signed_decision import VERSION
from passerelle.core.payloads.approval import (
    ActionRequired,
    ActionResolved,
    ApprovalDecision,
    ChannelPermissionReturned,
    Vote,
)
from passerelle.core.wire.canonical import digest
from passerelle.core.wire.json import JsonObject
from passerelle.core.wire.record import record

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from passerelle.core.evidence.selection import StoredFact

_OPEN_REV: Final = 1
"""The revision of an open approval, to which votes are given."""


@record
class SignedAnswer:
    """One signed answer of a device: ``signed`` is the content, ``value`` the signature in base64url."""

    event: str
    principal: str
    key_id: str
    value: str
    signed: JsonObject

    @property
    def device_id(self) -> str:
        """The device that signed."""
        return str(self.signed["deviceId"])


@record
class SigningDevice:
    """The key of a device, its principal, and who confirmed the pairing."""

    device_id: str
    principal: str
    tenant: str
    key_id: str
    algorithm: str
    public: str
    confirmed_at: str | None = None
    confirmed_by: str | None = None


def list_signed(facts: Iterable[StoredFact]) -> Iterator[SignedAnswer]:
    """The signed decisions and votes among facts, in order."""
    digests: dict[str | None, str] = {}
    for fact in facts:
        payload, action = fact.event.fact.payload, fact.event.fact.scope.action_id
        found: SignedAnswer | None = None
        match payload:
            case ActionRequired(request=request):
                digests[action] = request.digest
            case ActionResolved(decision=decision):
                found = _read_decision(fact.event.event_id, action, decision)
            case ChannelPermissionReturned(outcome="counted", vote=Vote() as vote):
                found = _read_vote(fact.event.event_id, action, vote, digests.get(action))
            case _:
                pass
        if found is not None:
            yield found


def _read_decision(
    event: str, action: str | None, decision: ApprovalDecision
) -> SignedAnswer | None:
    signature, content = decision.signature, decision.content
    if signature is None:
        return None
    signed: JsonObject = {
        "v": VERSION,
        "actionId": action,
        "rev": decision.rev,
        "digest": decision.digest,
        "optionId": decision.option_id,
        "contentDigest": None if content is None else digest(content),
        "decisionId": decision.decision_id,
        "deviceId": decision.device,
        "iat": signature.iat,
    }
    return SignedAnswer(event, decision.decided_by, signature.key_id, signature.value, signed)


def _read_vote(
    event: str, action: str | None, vote: Vote, digested: str | None
) -> SignedAnswer | None:
    signature = vote.signature
    if signature is None:
        return None
    signed: JsonObject = {
        "v": VERSION,
        "actionId": action,
        "rev": _OPEN_REV,
        "digest": digested,
        "optionId": vote.option_id,
        "contentDigest": None,
        "decisionId": vote.decision_id,
        "deviceId": vote.device,
        "iat": signature.iat,
    }
    return SignedAnswer(event, vote.principal, signature.key_id, signature.value, signed)
