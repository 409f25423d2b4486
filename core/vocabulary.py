"""Closed vocabularies that facts, records and frames share; of the builtin types alone, so that clients ship them."""

from __future__ import annotations

from typing import Literal, TypeAlias

PresenceState: TypeAlias = Literal["active", "idle", "away"]
"""What a device says of the person before it."""
WithdrawalReason: TypeAlias = Literal["scope", "audience", "pairing"]
"""What a device has lost with which it could see or answer a question."""
