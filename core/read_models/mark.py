"""Marks of read models for members that are missing or uncertain (SNAP-21, SNAP-22, VAL-11).

A missing member has an entry in ``marks`` under its wire name, with one of five states and a reason. A present member
with a mark is the last known value. A member without a mark is a fact. No mark is derived from an agent's text.
"""

from __future__ import annotations

from enum import StrEnum

from passerelle.core.wire.record import record


class MarkState(StrEnum):
    """Why a member is missing or uncertain."""

    UNKNOWN = "unknown"
    """No fact records it."""
    UNAVAILABLE = "unavailable"
    """A fact records it, but it cannot be read: trimmed, of a newer version, or beyond the search limit."""
    STALE = "stale"
    """It may be outdated."""
    BLOCKED = "blocked"
    """It will be known once the named approver or task has acted."""
    NOT_APPLICABLE = "not_applicable"
    """It does not apply here."""


@record
class FreshnessMark:
    """The mark of one member. ``behind_ms`` is the age of the newest evidence."""

    state: MarkState
    reason: str
    behind_ms: int | None = None


def unknown(reason: str) -> FreshnessMark:
    """No fact records it."""
    return FreshnessMark(MarkState.UNKNOWN, reason)


def unavailable(reason: str) -> FreshnessMark:
    """It cannot be read."""
    return FreshnessMark(MarkState.UNAVAILABLE, reason)


def not_applicable(reason: str) -> FreshnessMark:
    """It does not apply."""
    return FreshnessMark(MarkState.NOT_APPLICABLE, reason)


def blocked(reason: str) -> FreshnessMark:
    """A named party must act first."""
    return FreshnessMark(MarkState.BLOCKED, reason)


def stale(reason: str, behind_ms: int | None = None) -> FreshnessMark:
    """It may be outdated."""
    return FreshnessMark(MarkState.STALE, reason, behind_ms)
