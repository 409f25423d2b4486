"""Fixtures: a whole gateway over one real engine, and devices that connect to it."""

import pytest

from tests.integration.callers.conftest import engine_server, rig, started_legs

__all__ = ["engine_server", "rig", "started_legs", "unhurried"]

_LATER_MS = 20 * 60_000


@pytest.fixture
def unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Notifications are sent only for rows that the test makes due, however slow the machine is."""
    monkeypatch.setattr("passerelle.permission_bridge.answers.action_rows.UNSEEN_MS", _LATER_MS)
    monkeypatch.setattr("passerelle.store.pushes.WINDOW_MS", _LATER_MS)
