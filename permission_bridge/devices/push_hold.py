"""Decides whether a push about an approval request is sent now, sent later, or bundled.

Open connections, the inbox, webhooks and the expiry of the request are not affected; a suppressed push is no answer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from passerelle.core.agent_name import find_base
from passerelle.core.frozen import frozen
from passerelle.permission_bridge.devices.attempts import AGAIN, number_attempt
from passerelle.permission_bridge.quiet import find_quiet_end, is_high_risk
from passerelle.store.pushes import HeldPush

if TYPE_CHECKING:
    from passerelle.core.approval.record import ActionRecord
    from passerelle.core.ports.chance import Clock
    from passerelle.core.principal import Principal
    from passerelle.permission_bridge.devices.reach import DeviceReach
    from passerelle.permission_bridge.quiet import QuietHours
    from passerelle.store.pushes import RedisBundles, RedisMutes

ACTIVE: Final = "active"
SEEN: Final = "seen"
QUIET: Final = "quiet"
MUTED: Final = "muted"
PAUSES: Final = frozenset({QUIET, MUTED})
"""Reasons that end at a known time."""
BUNDLED: Final = "bundled"
"""The next bundle includes it, with the other requests of that minute."""


@frozen
class PushPause:
    """A time in which a person gets no push, and the reason."""

    reason: str
    until_ms: int


@frozen
class PushGate:
    """Decides about pushes. At most ``most`` single pushes per person and minute are sent."""

    clock: Clock
    bundles: RedisBundles
    mutes: RedisMutes
    most: int
    quiet: tuple[QuietHours, ...]

    async def find_pause(
        self, action: ActionRecord, principal: Principal, now_ms: int
    ) -> PushPause | None:
        """The pause that applies to a person now, for low and medium risk; a mute comes before quiet hours.

        ``now_ms`` is the time of the store, which also decides when the row for the end of the pause comes due.

        Raises:
            StoreUnavailable: the mutes cannot be read.
        """
        request = action.request
        if is_high_risk(request.risk):
            return None
        muted = await self.mutes.list_muted(principal.key) if request.origin.peer else {}
        muted_ms = muted.get(find_base(request.origin.peer or ""))
        if muted_ms is not None:
            return PushPause(MUTED, muted_ms)
        quiet_ms = find_quiet_end(self.quiet, principal.id, now_ms)
        return None if quiet_ms is None else PushPause(QUIET, quiet_ms)

    def judge(
        self,
        action: ActionRecord,
        principal: Principal,
        reach: DeviceReach,
        attempt: str,
        pause: PushPause | None,
    ) -> str | None:
        """The reason why no push is sent to a person now; None if one may be sent.

        A request that would expire in quiet hours is pushed silently. A mute suppresses it even then: the person asked
        for it.
        """
        if number_attempt(attempt) == 1 and reach.is_active:
            return ACTIVE
        if attempt == AGAIN and principal.id in action.seen:
            return SEEN
        if pause is None:
            return None
        if pause.reason == MUTED or pause.until_ms < action.request.expires_ms:
            return pause.reason
        return None

    async def bundle(self, action: ActionRecord, principal: Principal, attempt: str) -> bool:
        """Whether the push is deferred to a bundle because many were sent to the person within a minute.

        Raises:
            StoreUnavailable: whether it was deferred is unknown.
        """
        push = HeldPush(action.request.action_id, attempt)
        expires_ms = action.request.expires_ms
        return await self.bundles.defer(principal.key, push, self.most, expires_ms) is not None
