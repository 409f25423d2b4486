"""The standing approvals of an owner: grants, and a temporary bypass mode.

A *grant* is an allow that applies to further requests, created by an "always" answer. It is bound to the subject, to
the agent and its card, to a scope, and to a time; it is used up, expires, or is revoked, and never widens. All grants
of an owner are one record, stored with the owner's home session, so one read finds them whatever the session of the
request. Every change is a fact of the home session (``policy.changed``); this module folds them.

An ended grant stays listed for a day; after that only the facts show it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, assert_never

from passerelle.core.errors import NotFound, UnsupportedOperation
from passerelle.core.events import Event, Fact
from passerelle.core.ids import derive_id, shard_of
from passerelle.core.payloads.governance import Grant, PolicyChanged
from passerelle.core.wire.record import change, record
from passerelle.core.wire.times import parse_ms

if TYPE_CHECKING:
    from passerelle.core.facts import Scope

SCHEMA: Final = 1
GRANT_LIMIT: Final = 500
"""Live grants of one owner."""
KEPT_MS: Final = 24 * 3_600_000


@record
class Grants:
    """The grants of an owner. Its id is that of the owner's home session."""

    schema: int
    updated_at: str
    first_seq: int
    last_seq: int
    grants: tuple[Grant, ...] = ()
    bypass_until: str | None = None
    """Until when everything except critical or destructive actions is auto-approved; RFC 3339."""

    def find(self, grant_id: str) -> Grant | None:
        """The grant of that id."""
        return next((one for one in self.grants if one.grant_id == grant_id), None)

    def bypasses(self, now_ms: int) -> bool:
        """Whether the mode ``bypass`` is on."""
        return self.bypass_until is not None and now_ms < parse_ms(self.bypass_until)


def name_grant(action_id: str, owner: str) -> str:
    """The id of the grant that an answer to this approval creates; ``owner`` is the owner's key."""
    return derive_id("gr", shard_of(owner), "grant", action_id)


def record_grant(state: Grants | None, scope: Scope, grant: Grant, now_ms: int) -> list[Fact]:
    """The facts of a new grant; none if it exists already, or would have ended at once.

    Raises:
        UnsupportedOperation: the owner has the maximum number of grants.
    """
    known = state.find(grant.grant_id) if state else None
    if known is not None or grant.judge(now_ms) != "live":
        return []
    live = [one for one in state.grants if one.judge(now_ms) == "live"] if state else []
    if len(live) >= GRANT_LIMIT:
        raise UnsupportedOperation(f"an owner has at most {GRANT_LIMIT} grants")
    made = PolicyChanged(
        "grant",
        grant.minted_by,
        grant.policy_version,
        ref=grant.grant_id,
        step="created",
        grant=grant,
    )
    return [Fact(scope, made)]


def record_use(
    state: Grants | None, scope: Scope, grant_id: str, evaluation_id: str, now_ms: int
) -> list[Fact]:
    """The facts of one use.

    Raises:
        NotFound: there is no such grant.
        UnsupportedOperation: it has ended.
    """
    grant = _find(state, grant_id)
    grant_state = grant.judge(now_ms)
    if grant_state != "live":
        raise UnsupportedOperation(f"the grant is {grant_state}", state=grant_state)
    used = PolicyChanged(
        "grant",
        "gateway",
        grant.policy_version,
        ref=grant_id,
        step="used",
        evaluation_id=evaluation_id,
    )
    return [Fact(scope, used)]


def record_revocation(state: Grants | None, scope: Scope, grant_id: str, actor: str) -> list[Fact]:
    """The facts of its revocation; none if it was revoked before.

    Raises:
        NotFound: there is no such grant.
    """
    grant = _find(state, grant_id)
    if grant.revoked_at is not None:
        return []
    return [
        Fact(
            scope,
            PolicyChanged("grant", actor, grant.policy_version, ref=grant_id, step="revoked"),
        )
    ]


def evolve(state: Grants | None, event: Event) -> Grants | None:
    """The record after an event; total."""
    payload = event.fact.payload
    before = state or Grants(SCHEMA, event.timestamp, event.sequence, event.sequence)
    if state is not None and 0 < state.last_seq >= event.sequence > 0:
        return state
    moved = change(before, updated_at=event.timestamp, last_seq=event.sequence)
    match payload:
        case PolicyChanged(change="mode", mode="bypass", until=until):
            return change(moved, bypass_until=until)
        case PolicyChanged(change="grant", grant=Grant() as grant):
            kept = _keep(before.grants, parse_ms(event.timestamp))
            return change(moved, grants=(*kept, grant))
        case PolicyChanged(change="grant"):
            grants = tuple(_fold(one, payload, event.timestamp) for one in before.grants)
            return change(moved, grants=grants)
        case _:
            return state


FOLDED: Final[frozenset[type]] = frozenset({PolicyChanged})


def folds_grants(event: Event) -> bool:
    """Whether the event changes the grants or the bypass of the owner whose home session it is in."""
    payload = event.fact.payload
    if not isinstance(payload, PolicyChanged):
        return False
    return payload.change == "grant" or (payload.change == "mode" and payload.mode == "bypass")


def _find(state: Grants | None, grant_id: str) -> Grant:
    grant = state.find(grant_id) if state else None
    if grant is None:
        raise NotFound("grant", grant_id)
    return grant


def _fold(grant: Grant, changed: PolicyChanged, at: str) -> Grant:
    if changed.ref != grant.grant_id:
        return grant
    match changed.step:
        case "used":
            return change(grant, uses=grant.uses + 1, last_used_at=at)
        case "revoked":
            return change(grant, revoked_at=at, revoked_by=changed.actor)
        case "created" | None:
            return grant
        case _:
            assert_never(changed.step)


def _keep(grants: tuple[Grant, ...], now_ms: int) -> tuple[Grant, ...]:
    return tuple(
        one
        for one in grants
        if now_ms < one.expires_ms + KEPT_MS
        and (one.revoked_at is None or now_ms < parse_ms(one.revoked_at) + KEPT_MS)
    )
