"""The script of a conversation: the caller's messages, and the agent's orders.

The first message contains the orders, as JSON after its first word; an agent of any library keeps them by its task
id.
"""

from __future__ import annotations

import json
from typing import Final

from tests.conversations.axes import Case
from tests.conversations.forms import Json

EXTENSION: Final = "urn:example:ext:one"
PDF: Final = "JVBERi0xLjQK"
CALL: Final[Json] = {
    "id": "adk-call-1",
    "name": "adk_request_confirmation",
    "args": {
        "originalFunctionCall": {"id": "call-1", "name": "pay", "args": {"amount": 42}},
        "toolConfirmation": {"hint": "Pay 42?", "confirmed": False},
    },
}
QUESTIONS: Final[dict[str, tuple[str, list[Json]]]] = {
    "words": ("INPUT_REQUIRED", [{"text": "which one?"}]),
    "form": (
        "INPUT_REQUIRED",
        [
            {"text": "fill this in"},
            {"data": {"form": {"fields": [{"name": "code", "type": "text"}]}}},
        ],
    ),
    "credential": ("AUTH_REQUIRED", [{"text": "log in at https://login.example/start"}]),
    "dialect": (
        "INPUT_REQUIRED",
        [{"data": CALL, "metadata": {"adk_type": "function_call", "adk_is_long_running": True}}],
    ),
}
"""The state in which an agent requests input, and the parts of its request."""
ANSWERS: Final[dict[str, list[Json]]] = {
    "text": [{"text": "blue"}],
    "data": [{"data": {"code": "123"}}],
    "file": [{"raw": PDF, "filename": "invoice.pdf", "mediaType": "application/pdf"}],
    "url": [{"url": "https://e.example/i.pdf", "mediaType": "application/pdf"}],
    "mixed": [{"text": "blue"}, {"data": {"code": "123"}}, {"raw": PDF, "filename": "i.pdf"}],
    "native": [
        {
            "data": {
                "id": CALL["id"],
                "name": CALL["name"],
                "response": {"confirmed": True},
            },
            "metadata": {"adk_type": "function_response"},
        }
    ],
}


def write_order(case: Case) -> str:
    """The text of the first message."""
    then = {
        "second": ["ask", "complete"],
        "silent": ["pass", "complete"],
        "refused": ["refuse", "complete"],
        "raises": ["raise"],
    }.get(case.event, ["complete"])
    state, parts = QUESTIONS[case.asks]
    told = {
        "state": state,
        "parts": parts,
        "resends": case.resends == "resends",
        "stores": case.stores == "stores",
        "then": then,
    }
    return "play " + json.dumps(told, separators=(",", ":"))


SECOND: Final = "and which size?"
DONE: Final = "done"
REFUSAL: Final = "that is no colour"
FAULT: Final = "the tool broke"
