"""What a call forwards to the agent, and what it never forwards."""

from __future__ import annotations

import pytest

from tests.integration.a2a.rig import Rig

pytestmark = pytest.mark.anyio


async def test_extension_declared_by_the_agent_is_forwarded_and_the_callers_key_is_not(
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
