"""What ``approvals show`` prints about an approval."""

from __future__ import annotations

import pytest

from passerelle.cli.verbs.approval_text import describe_question
from passerelle.core.wire.json import JsonObject

CASES: list[tuple[JsonObject, str | None]] = [
    ({"quorum": {"need": 1, "veto": True}}, None),
    (
        {"quorum": {"need": 1}, "audience": [["ada"]]},
        "one approval required of ada",
    ),
    (
        {
            "quorum": {"need": 2, "allowSelf": False},
            "audience": [["ada", "zoë"], ["eve"]],
            "audienceRoles": [["money", "board"], []],
            "audienceDevices": ["any", "paired"],
        },
        "2 approvals required of ada, zoë (role money, board), then also eve on paired devices, not by the requester",
    ),
    ({"quorum": {"need": 2}, "audience": [[]]}, "2 approvals required of nobody"),
    ({"quorum": {}, "audience": "none"}, None),
]


@pytest.mark.parametrize(("members", "line"), CASES)
def test_approvers_are_words(members: JsonObject, line: str | None) -> None:
    lines = list(describe_question({"actionId": "act_1", **members}))
    found = [one.split(None, 1)[1] for one in lines if one.startswith("quorum")]
    assert found == ([line] if line else [])
