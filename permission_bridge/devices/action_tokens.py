"""Answers by a button of a notification: a token that stands for one answer to one question, from one device.

It travels inside the encrypted push and nowhere else. It is for what is of low risk, or of medium where the operator
wants it so, holds for a few minutes, and names the revision, the digest and the options that it may choose; the answer
goes the way of every answer. A question that one answer closes takes no second one, so a token counts once. Where
several must agree none is given out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from passerelle.core.commands import RespondAction
from passerelle.core.errors import ConfigInvalid, CredentialExpired, Unauthenticated, UnknownOption
from passerelle.core.payloads.device import reaches
from passerelle.core.wire.codec import from_bytes, to_bytes
from passerelle.core.wire.record import record
from passerelle.core.wire.times import format_ms

if TYPE_CHECKING:
    from passerelle.core.approval.record import ActionRecord
    from passerelle.core.payloads.approval import Risk
    from passerelle.core.ports.chance import Clock, Ids
    from passerelle.core.principal import Principal
    from passerelle.core.wire.json import Json, JsonObject
    from passerelle.runtime.common.sealer import Sealer

LIFE_MS: Final = 5 * 60_000
TOKEN_LIMIT: Final = 2_048
_PLACE: Final = "action token"
_NAME_BITS: Final = 80
_KINDS: Final = frozenset({"allow_once", "reject_once"})
_MOST: Final = 2
"""Buttons that platforms show."""


@record
class ActionToken:
    """What a token says. ``token_id`` names the decision that it makes."""

    token_id: str
    action_id: str
    rev: int
    digest: str
    options: tuple[str, ...]
    principal: str
    tenant: str
    device: str
    until_ms: int


@dataclass(frozen=True, slots=True)
class ActionTokens:
    """Makes tokens and reads them. Without a sealer there are none."""

    sealer: Sealer | None
    clock: Clock
    ids: Ids
    up_to: Risk = "low"

    def offer(self, action: ActionRecord, whose: Principal, device: str) -> JsonObject | None:
        """What a push to a device says of its buttons; None for a question that has to be opened."""
        request = action.request
        options = [one for one in request.options if one.kind in _KINDS][:_MOST]
        if (
            self.sealer is None
            or not options
            or not reaches(self.up_to, request.risk)
            or request.quorum.need > 1
            or request.kind not in {"permission", "confirmation"}
        ):
            return None
        token = ActionToken(
            token_id=f"tok_{self.ids.draw(_NAME_BITS):020x}",
            action_id=request.action_id,
            rev=action.rev,
            digest=request.digest,
            options=tuple(one.option_id for one in options),
            principal=whose.id,
            tenant=whose.tenant,
            device=device,
            until_ms=min(self.clock.now_ms() + LIFE_MS, request.expires_ms),
        )
        buttons: list[Json] = [{"optionId": one.option_id, "name": one.name} for one in options]
        return {
            "token": self.sealer.seal(to_bytes(token), _PLACE).decode(),
            "until": format_ms(token.until_ms),
            "options": buttons,
        }

    def read(self, text: str) -> ActionToken:
        """What a token says that is shown here.

        Raises:
            Unauthenticated: it is none of ours.
            CredentialExpired: its time is over.
        """
        if self.sealer is None:
            raise Unauthenticated("there are no tokens here")
        try:
            token = from_bytes(ActionToken, self.sealer.unseal(text.encode(), _PLACE))
        except ConfigInvalid:
            raise Unauthenticated("this is no token of an approval") from None
        if token.until_ms <= self.clock.now_ms():
            raise CredentialExpired("this token has expired: open the approval")
        return token


def make_answer(token: ActionToken, option: str) -> RespondAction:
    """The answer that a token stands for.

    Raises:
        UnknownOption: the token does not choose it.
    """
    if option not in token.options:
        raise UnknownOption("optionId", "is not one of those that the token chooses")
    return RespondAction(
        action_id=token.action_id,
        rev=token.rev,
        digest=token.digest,
        decision_id=token.token_id,
        option_id=option,
    )
