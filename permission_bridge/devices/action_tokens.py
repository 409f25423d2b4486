"""Tokens of notification buttons: each is valid for one answer to one approval request, from one device.

A token is sent only inside the encrypted push. It is issued for low risk, or up to medium if configured, expires after
minutes, and contains the revision, the digest and the options it may choose; the answer takes the usual path. A request
that one answer closes accepts no second one, so a token is effective once. No token is issued for a request that needs
several approvers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from passerelle.core.commands import RespondAction
from passerelle.core.errors import ConfigInvalid, CredentialExpired, Unauthenticated, UnknownOption
from passerelle.core.frozen import frozen
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
"""Number of buttons that platforms show."""


@record
class ActionToken:
    """The content of a token. ``token_id`` becomes the id of the decision."""

    token_id: str
    action_id: str
    rev: int
    digest: str
    options: tuple[str, ...]
    principal: str
    tenant: str
    device: str
    until_ms: int


@frozen
class ActionTokens:
    """Issues and reads tokens. Without a sealer there are none."""

    sealer: Sealer | None
    clock: Clock
    ids: Ids
    up_to: Risk = "low"

    def offer(self, action: ActionRecord, whose: Principal, device: str) -> JsonObject | None:
        """The buttons of a push to a device; None if the request has to be opened in the client."""
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
        """The content of a token.

        Raises:
            Unauthenticated: it was not issued here.
            CredentialExpired: it has expired.
        """
        if self.sealer is None:
            raise Unauthenticated("action tokens are not enabled")
        try:
            token = from_bytes(ActionToken, self.sealer.unseal(text.encode(), _PLACE))
        except ConfigInvalid:
            raise Unauthenticated("this is not an approval token") from None
        if token.until_ms <= self.clock.now_ms():
            raise CredentialExpired("this token has expired: open the approval")
        return token


def make_answer(token: ActionToken, option: str) -> RespondAction:
    """The answer that a token and an option stand for.

    Raises:
        UnknownOption: the token may not choose it.
    """
    if option not in token.options:
        raise UnknownOption("optionId", "is not an option of this token")
    return RespondAction(
        action_id=token.action_id,
        rev=token.rev,
        digest=token.digest,
        decision_id=token.token_id,
        option_id=option,
    )
