"""What a call carries on to the agent, and what it never does."""

from __future__ import annotations

import pytest

from tests.integration.a2a.rig import Rig

pytestmark = pytest.mark.anyio


async def test_extension_that_the_agent_declares_goes_on_to_it_and_the_callers_key_does_not(
    rig: Rig,
) -> None:
    rig.peer.card = {
        **rig.peer.card,
        "capabilities": {"streaming": True, "extensions": [{"uri": "urn:theirs"}]},
    }
    asked = {"A2A-Version": "1.0", "A2A-Extensions": "urn:theirs, urn:passerelle:ext:resume:1"}
    answer = await rig.post("SendMessage", rig.message("hello"), **asked)
    assert "error" not in answer.json()
    headers = rig.peer.requests[-1].headers
    assert headers["a2a-extensions"] == "urn:theirs"
    assert "authorization" not in headers
    await rig.post("SendMessage", rig.message("hello"))
    assert "a2a-extensions" not in rig.peer.requests[-1].headers
