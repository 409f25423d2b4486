"""The registry of the service: every command and every query has its handler."""

from __future__ import annotations

from typing import get_args

import pytest

from passerelle.core import commands
from passerelle.core.commands import SubmitTurn
from tests.support.harness import Harness

pytestmark = pytest.mark.anyio


def flatten(union: object) -> set[object]:
    """The classes of a union, those of its unions among them."""
    members = get_args(union)
    return set[object]().union(*map(flatten, members)) if members else {union}


@pytest.mark.requirement("CMD-27")
async def test_every_command_and_query_has_one_handler(harness: Harness) -> None:
    handlers = harness.service.handlers
    assert set(handlers.commands) == flatten(commands.Command) - {SubmitTurn}
    assert set(handlers.queries) == flatten(commands.Query)
