"""Closed vocabularies that facts, records and frames share; builtin types only, so that clients can ship them."""

from __future__ import annotations

from typing import Literal, TypeAlias

PresenceState: TypeAlias = Literal["active", "idle", "away"]
"""A device's report of its user's presence."""
WithdrawalReason: TypeAlias = Literal["scope", "audience", "pairing"]
"""The missing right through which a device can no longer see or answer an approval."""
