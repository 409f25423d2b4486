"""Matches grants with cases, and derives the grant that an "always" decision creates.

A grant matches what it was given for and nothing wider: the same owner, the same place, the same agent with the same
card (any agent if its scope is ``owner``), and the identical subject, or the same tool if it was given for a tool.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, assert_never

from passerelle.core.frozen import frozen
from passerelle.core.payloads.approval import GrantOffer
from passerelle.core.payloads.governance import Grant
from passerelle.core.policy.grant import name_grant
from passerelle.core.wire.times import parse_ms
from passerelle.permission_bridge.cases import PeerAsks, digest_subject

if TYPE_CHECKING:
    from collections.abc import Iterable

    from passerelle.core.approval.record import ActionRecord
    from passerelle.core.facts import Scope
    from passerelle.core.payloads.approval import GrantScope
    from passerelle.permission_bridge.policy import Evaluation
    from passerelle.permission_bridge.rules import GrantTerms


@frozen
class Where:
    """The ids of the task, thread and session in which something is asked."""

    task: str = ""
    thread: str = ""
    session: str = ""

    def name(self, scope: GrantScope) -> str:
        """The id of the place that a grant of this scope is bound to; empty if it is bound to no place."""
        match scope:
            case "task":
                return self.task
            case "thread":
                return self.thread
            case "session":
                return self.session
            case "peer" | "owner":
                return ""
            case _:
                assert_never(scope)


NOWHERE = Where()


def find_where(scope: Scope) -> Where:
    """The ids of a scope that grants may be bound to."""
    return Where(scope.task_id or "", scope.thread_id or "", scope.session_id)


def find_grant(grants: Iterable[Grant], case: PeerAsks, where: Where, now_ms: int) -> Grant | None:
    """The grant that matches; of several the one that expires first."""
    subject = digest_subject(case)
    fitting = [one for one in grants if _fits(one, case, where, subject, now_ms)]
    return min(fitting, key=lambda one: one.expires_ms, default=None)


def _fits(grant: Grant, case: PeerAsks, where: Where, subject: str | None, now_ms: int) -> bool:
    if grant.judge(now_ms) != "live" or grant.action_type != case.action_type:
        return False
    if grant.scope != "owner" and (grant.peer, grant.card_hash) != (case.peer, case.card_hash):
        return False
    if grant.place != where.name(grant.scope):
        return False
    if grant.subject_digest is not None:
        return grant.subject_digest == subject
    return bool(grant.tool) and grant.tool == case.tool


def make_offer(case: PeerAsks, evaluation: Evaluation, terms: GrantTerms) -> GrantOffer | None:
    """The grant that approvers may give instead of a single approval; None if each case needs its own decision."""
    if terms.scope is None or not evaluation.offers_grant or not case.is_allowable:
        return None
    if case.destructive or evaluation.risk == "critical":
        return None
    if terms.match == "tool" and case.tool:
        return GrantOffer(terms.scope, terms.ttl_ms, tool=case.tool, max_uses=terms.max_uses)
    subject = digest_subject(case)
    if subject is None or case.command.opaque:
        return None
    return GrantOffer(terms.scope, terms.ttl_ms, subject, max_uses=terms.max_uses)


def mint_grant(action: ActionRecord) -> Grant | None:
    """The grant that a decision creates; None unless it was an "always".

    The grant is derived from the record alone, so a repeat creates the same one.
    """
    decision, request = action.decision, action.request
    option = action.find_option(decision.option_id or "") if decision is not None else None
    if decision is None or option is None or option.grant is None:
        return None
    if decision.outcome != "allowed" or decision.source != "answer":
        return None
    terms, given_ms = option.grant, parse_ms(decision.decided_at)
    is_owners = terms.scope == "owner"
    return Grant(
        grant_id=name_grant(request.action_id, request.owner),
        action_id=request.action_id,
        minted_by=decision.decided_by,
        scope=terms.scope,
        place=find_where(action.scope).name(terms.scope),
        action_type=request.action_type,
        created_ms=given_ms,
        expires_ms=given_ms + terms.ttl_ms,
        policy_version=request.policy_version,
        title=request.title,
        peer=None if is_owners else request.origin.peer,
        card_hash=None if is_owners else request.origin.card_hash,
        subject_digest=terms.subject_digest,
        tool=terms.tool,
        max_uses=terms.max_uses,
    )
