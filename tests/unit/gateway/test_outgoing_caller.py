"""Whether an agent may still get the result of its call after the rights of its credential have changed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from passerelle.a2a_mapping.rpc import Method
from passerelle.channels.reverse_asks import AgentAsk
from passerelle.core.errors import Forbidden, NotFound
from passerelle.core.principal import AccessScope, Principal
from passerelle.gateway.reverse.outgoing_calls import OutgoingCaller

pytestmark = pytest.mark.anyio

ASKER = Principal(
    "asker",
    agents=frozenset({"planner"}),
    scopes=frozenset({AccessScope.CALL, AccessScope.READ_TASKS}),
)


@pytest.mark.parametrize(
    ("now", "refusal"),
    [
        (ASKER, None),
        (replace(ASKER, agents=frozenset()), NotFound),
        (replace(ASKER, scopes=frozenset({AccessScope.SERVE})), Forbidden),
        (replace(ASKER, operations={"planner": frozenset({"GetTask"})}), Forbidden),
    ],
)
async def test_a_right_that_is_taken_away_ends_what_waits_by_it(
    now: Principal, refusal: type[Exception] | None
) -> None:
    ask = AgentAsk(lambda: now, "planner", "SubscribeToTask", {}, {}, None)
    error = await OutgoingCaller(ask, Method.SUBSCRIBE_TO_TASK).judge()
    assert (None if error is None else type(error)) == refusal
