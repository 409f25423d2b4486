"""What keeps a push about a question from going out to somebody now, and until when.

Open links, inboxes, webhooks and the time of a question know none of it, and to be left alone is no answer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from passerelle.core.agent_name import find_base
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
CALMS: Final = frozenset({QUIET, MUTED})
"""Reasons that end by themselves, at a time that is known."""
BUNDLED: Final = "bundled"
"""The next bundle tells of it, with whatever else has come at once."""


@dataclass(frozen=True, slots=True)
class Calm:
    """A time in which somebody is left alone, and why."""

    reason: str
    until_ms: int


@dataclass(frozen=True, slots=True)
class Holding:
    """Judges pushes. ``most`` go out to a person in a minute by themselves."""

    clock: Clock
    bundles: RedisBundles
    mutes: RedisMutes
    most: int
    quiet: tuple[QuietHours, ...] = ()

    async def find_calm(
        self, action: ActionRecord, principal: Principal, now_ms: int
    ) -> Calm | None:
        """The time of calm that somebody is in, for low and medium risk; a mute comes before quiet hours.

        ``now_ms`` is the store's: by that the row for the end comes due.

        Raises:
            StoreUnavailable: nobody knows.
        """
        request = action.request
        if is_high_risk(request.risk):
            return None
        muted = await self.mutes.list_muted(principal.key) if request.origin.peer else {}
        muted_ms = muted.get(find_base(request.origin.peer or ""))
        if muted_ms is not None:
            return Calm(MUTED, muted_ms)
        quiet_ms = find_quiet_end(self.quiet, principal.id, now_ms)
        return None if quiet_ms is None else Calm(QUIET, quiet_ms)

    def judge(
        self,
        action: ActionRecord,
        principal: Principal,
        reach: DeviceReach,
        attempt: str,
        calm: Calm | None,
    ) -> str | None:
        """Why no push goes out to somebody now.

        What would expire in quiet hours goes out without a sound. A mute was asked for, and holds it all the same.
        """
        if number_attempt(attempt) == 1 and reach.is_active:
            return ACTIVE
        if attempt == AGAIN and principal.id in action.seen:
            return SEEN
        if calm is None:
            return None
        if calm.reason == MUTED or calm.until_ms < action.request.expires_ms:
            return calm.reason
        return None

    async def bundle(self, action: ActionRecord, principal: Principal, attempt: str) -> bool:
        """Whether a push that may go out waits for a bundle, since many have gone out within a minute.

        Raises:
            StoreUnavailable: nobody knows.
        """
        push = HeldPush(action.request.action_id, attempt)
        expires_ms = action.request.expires_ms
        return await self.bundles.defer(principal.key, push, self.most, expires_ms) is not None
