"""The URIs of the supported A2A extensions. A breaking change of an own one increments the number at the end."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from passerelle.a2a_mapping.members import object_at, objects_at, text_at

if TYPE_CHECKING:
    from passerelle.core.wire.json import JsonObject

PREFIX: Final = "urn:passerelle:ext:"
PERMISSION: Final = f"{PREFIX}permission:1"
"""An open approval on a waiting status, and its typed answer."""
RESUME: Final = f"{PREFIX}resume:1"
"""A cursor on every event of a stream, and a defined answer to a reader that returns with one."""
REFERENCE: Final = f"{PREFIX}reference:1"
"""In the metadata of a part: it comes from an artifact of a referenced task, not from the caller."""
AFTER: Final = f"{PREFIX}after:1"
"""In the metadata of a message that opens a task: ids of tasks of its context that must complete first."""
NAMED: Final = f"{PREFIX}named:1"
"""In the metadata of a message that opens a task: names of artifacts of its context that it refers to."""
CORRELATION: Final = f"{PREFIX}correlation:1"
"""In the metadata of a message, if configured for the agent: a key to find its task again."""
ACCEPTANCE: Final = f"{PREFIX}acceptance:1"
"""In the metadata of a message that opens a task: the conditions that complete the task."""
PROFILE: Final = f"{PREFIX}profile:1"
"""In the metadata of a message to the gateway's own agent: the required properties of the chosen agent."""
INTERFACES: Final = f"{PREFIX}interfaces:1"
"""On a card: further interfaces, listed on the card itself for readers that activate this extension."""
STATE: Final = f"{PREFIX}state:1"
"""In the metadata of a status: ``{"known": false}`` if the agent sent a state that A2A does not have."""
APPROVAL: Final = "https://a2a-extensions.agentstack.beeai.dev/interactions/approval/v1"
"""Of AgentStack: an approval on a waiting status, and the answer to it."""
KAGENT_HITL: Final = "https://kagent.dev/extensions/hitl/v1"
"""Of kagent: tools to approve and questions to answer on a waiting status, and the answers."""
KAGENT_USAGE: Final = "https://kagent.dev/extensions/usage/v1"
"""Of kagent: in the metadata of a status, the tokens that the task has used so far."""
UNDERSTOOD: Final = frozenset({PERMISSION, APPROVAL, KAGENT_HITL, KAGENT_USAGE})
"""Extensions that the gateway handles itself, and activates at every agent that declares them (A2A 1.0 section 4.6)."""


def list_required(card: JsonObject) -> frozenset[str]:
    """The URIs of the extensions that a card requires."""
    offered = objects_at(object_at(card, "capabilities"), "extensions")
    return frozenset(text_at(item, "uri") for item in offered if item.get("required") is True)
