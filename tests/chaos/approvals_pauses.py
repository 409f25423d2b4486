"""The approval requests of each dialect: the recorded Tasks, with the label of the errand in the request."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Final, cast

from tests.chaos.approvals_plan import Death

if TYPE_CHECKING:
    from passerelle.core.wire.json import JsonObject
    from tests.chaos.approvals_plan import Errand

_VECTORS: Final = Path(__file__).parents[1] / "vectors" / "dialects.json"
_SAYS: Final = {
    "adk": ("one confirmation of a tool call", "delete_rows"),
    "kagent": ("one tool to approve", "delete_file"),
    "kagent_parts": ("one tool of a Python agent", "delete_rows"),
    "agentstack": ("an approval in the metadata", "delete_rows"),
    "strands": ("an interrupt that is an approval by its name", '"delete"'),
    "langgraph": ("one tool call to be reviewed", '"send"'),
    "mastra": ("a tool that needs approval", '"pay"'),
    "cuga": ("an action that waits to be confirmed", '"book"'),
    "schema": ("a form to be filled in", "Which colour?"),
}
_GROUPS: Final = {
    "adk": ("two confirmations in one message", '"pay"'),
    "kagent": ("two tools, answered one by one in one message", "delete_file"),
    "kagent_parts": ("two tools of a Python agent", "delete_rows"),
    "langgraph": ("two calls in one interrupt, in their order", '"send"'),
}
_IDS: Final = {
    "adk": '"adk-1"',
    "kagent": '"approval-1"',
    "kagent_parts": '"adk-0"',
    "strands": '"s1"',
    "langgraph": '"i1"',
    "cuga": '"c-1"',
}
"""The member that names the request, per dialect; the others are distinguished by their message."""


def read_pause(errand: Errand, number: int = 0) -> JsonObject:
    """The Task with which an agent of the dialect requests approval, after ``number`` previous requests."""
    says, token = _SAYS[errand.dialect]
    if errand.death is Death.IN_LAST_OF_GROUP:
        says, token = _GROUPS[errand.dialect]
    for vector in cast("list[JsonObject]", json.loads(_VECTORS.read_text("utf-8"))):
        if (vector["dialect"], vector["says"]) == (errand.dialect, says):
            labelled = token.replace(token.strip('"'), errand.label)
            text = json.dumps(vector["task"]).replace(token, labelled)
            for name in (_IDS.get(errand.dialect, '"m1"'), '"m1"', '"a1"'):
                text = text.replace(name, f'{name[:-1]}-{errand.label}-{number}"')
            return cast("JsonObject", json.loads(text))
    raise LookupError(says)
