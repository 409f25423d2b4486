"""Votes, where several principals must agree, and when they are enough.

A vote belongs to a principal, whatever the device: two devices of one person are one vote. A later vote of the same
principal replaces the earlier one. Votes of revoked devices do not count.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from passerelle.core.errors import UnsupportedOperation
from passerelle.core.events import Fact
from passerelle.core.payloads.approval import ChannelPermissionReturned, Vote
from passerelle.core.payloads.device import NEGATIVE
from passerelle.core.wire.times import format_ms

if TYPE_CHECKING:
    from passerelle.core.approval.commands import AnswerAction, WithdrawVotes
    from passerelle.core.approval.record import ActionRecord
    from passerelle.core.payloads.approval import Option


def make_vote(answer: AnswerAction, option: Option, now_ms: int) -> Vote:
    """The vote of a valid answer."""
    who = answer.who
    return Vote(
        principal=who.id,
        option_id=option.option_id,
        decision_id=answer.decision_id,
        agrees=option.kind not in NEGATIVE,
        at=format_ms(now_ms),
        device=who.device,
        device_name=who.device_name or who.device,
        comment=answer.comment,
        signature=answer.signature,
    )


def closes(record: ActionRecord, vote: Vote, void: frozenset[str]) -> bool:
    """Whether a vote decides: it is a veto, or it completes the quorum of its kind for the same option."""
    quorum = record.request.quorum
    if not vote.agrees and quorum.veto:
        return True
    others = [
        one
        for one in record.votes
        if one.principal != vote.principal and one.device not in void and one.agrees is vote.agrees
    ]
    # Votes for different options do not add up.
    same = [one for one in others if not vote.agrees or one.option_id == vote.option_id]
    return len(same) + 1 >= quorum.need


def count_agreeing(record: ActionRecord) -> int:
    """The most votes for one option: counted votes plus the deciding answer."""
    decision = record.decision
    decided_by = decision.decided_by if decision else None
    named = [one.option_id for one in record.votes if one.agrees and one.principal != decided_by]
    option = record.find_option(decision.option_id) if decision and decision.option_id else None
    if option is not None and option.kind not in NEGATIVE:
        named.append(option.option_id)
    return max(Counter(named).values(), default=0)


def is_cast(record: ActionRecord, vote: Vote) -> bool:
    """Whether this vote is already recorded, as for a repeated message."""
    return any(
        (one.decision_id, one.principal, one.option_id)
        == (vote.decision_id, vote.principal, vote.option_id)
        for one in record.votes
    )


def record_vote(record: ActionRecord, vote: Vote) -> Fact:
    """A vote that counts but closes nothing."""
    payload = ChannelPermissionReturned(
        direction="answer",
        source="answer",
        accepted=True,
        outcome="counted",
        channel_id=vote.device,
        vote=vote,
    )
    return Fact(record.scope, payload)


def withdraw(record: ActionRecord, command: WithdrawVotes) -> list[Fact]:
    """Takes back the votes of revoked devices, one by one.

    Raises:
        UnsupportedOperation: none of these devices has voted here.
    """
    gone = [vote for vote in record.votes if vote.device in command.devices]
    if not gone:
        raise UnsupportedOperation("this device has no vote here")
    return [
        Fact(
            record.scope,
            ChannelPermissionReturned(
                direction="answer",
                source="system",
                accepted=False,
                outcome="withdrawn",
                channel_id=vote.device,
                reason="device_revoked",
                vote=vote,
            ),
        )
        for vote in gone
    ]


def fold_vote(votes: tuple[Vote, ...], payload: ChannelPermissionReturned) -> tuple[Vote, ...]:
    """The votes after a fact."""
    vote = payload.vote
    if vote is None:
        return votes
    if payload.outcome == "withdrawn":
        return tuple(one for one in votes if one.decision_id != vote.decision_id)
    return (*(one for one in votes if one.principal != vote.principal), vote)
