"""What a read model says of a member that it cannot give as plain truth (SNAP-21, SNAP-22, VAL-11).

A member that is missing stands in ``marks`` under its wire name, with one of five words and a reason. One that is
there and stands in ``marks`` as well is the last that is known. A member without a mark is a fact. Nothing is ever read
out of what a peer says in prose.
"""

from __future__ import annotations

from enum import StrEnum

from passerelle.core.wire.record import record


class MarkState(StrEnum):
    """Why a member is not plain truth."""

    UNKNOWN = "unknown"
    """No fact says it."""
    UNAVAILABLE = "unavailable"
    """A fact says it, and cannot be had: trimmed, of a newer version, or beyond what is looked through."""
    STALE = "stale"
    """It may be behind what is the case."""
    BLOCKED = "blocked"
    """It will be known when somebody named has acted."""
    NOT_APPLICABLE = "not_applicable"
    """There is no such thing here."""


@record
class FreshnessMark:
    """One word about one member. ``behind_ms`` says how old the newest proof is."""

    state: MarkState
    reason: str
    behind_ms: int | None = None


def unknown(reason: str) -> FreshnessMark:
    """No fact says it."""
    return FreshnessMark(MarkState.UNKNOWN, reason)


def unavailable(reason: str) -> FreshnessMark:
    """It cannot be had."""
    return FreshnessMark(MarkState.UNAVAILABLE, reason)


def not_applicable(reason: str) -> FreshnessMark:
    """There is no such thing."""
    return FreshnessMark(MarkState.NOT_APPLICABLE, reason)


def blocked(reason: str) -> FreshnessMark:
    """Somebody must act first."""
    return FreshnessMark(MarkState.BLOCKED, reason)


def stale(reason: str, behind_ms: int | None = None) -> FreshnessMark:
    """It may be behind."""
    return FreshnessMark(MarkState.STALE, reason, behind_ms)
