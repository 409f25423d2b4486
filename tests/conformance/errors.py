"""The form of each A2A error in each binding: the table of A2A 1.0.1 section 5.4, written down independently."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tests.conformance.callers import GRPC, HTTP_JSON, JSONRPC, Refusal

DOMAIN: Final = "a2a-protocol.org"


@dataclass(frozen=True, slots=True)
class Error:
    """One error; ``reason`` is empty for those of JSON-RPC itself, which have no details."""

    jsonrpc: int
    http: int
    grpc: str
    reason: str = ""

    def check(self, refusal: Refusal, binding: str) -> None:
        """Checks that the refusal is this error, with everything that its binding requires."""
        codes = {JSONRPC: self.jsonrpc, HTTP_JSON: self.http, GRPC: self.grpc}
        assert refusal.code == codes[binding], refusal
        assert refusal.message.strip(), refusal
        if self.reason:
            assert (refusal.reason, refusal.info.get("domain")) == (self.reason, DOMAIN), refusal


TASK_NOT_FOUND: Final = Error(-32001, 404, "NOT_FOUND", "TASK_NOT_FOUND")
NOT_CANCELABLE: Final = Error(-32002, 400, "FAILED_PRECONDITION", "TASK_NOT_CANCELABLE")
NO_PUSH: Final = Error(-32003, 400, "FAILED_PRECONDITION", "PUSH_NOTIFICATION_NOT_SUPPORTED")
UNSUPPORTED: Final = Error(-32004, 400, "FAILED_PRECONDITION", "UNSUPPORTED_OPERATION")
CONTENT_TYPE: Final = Error(-32005, 400, "INVALID_ARGUMENT", "CONTENT_TYPE_NOT_SUPPORTED")
NO_EXTENDED_CARD: Final = Error(
    -32007, 400, "FAILED_PRECONDITION", "EXTENDED_AGENT_CARD_NOT_CONFIGURED"
)
EXTENSION_REQUIRED: Final = Error(-32008, 400, "FAILED_PRECONDITION", "EXTENSION_SUPPORT_REQUIRED")
VERSION: Final = Error(-32009, 400, "FAILED_PRECONDITION", "VERSION_NOT_SUPPORTED")
INVALID_PARAMS: Final = Error(-32602, 400, "INVALID_ARGUMENT")
INVALID_REQUEST: Final = Error(-32600, 400, "INVALID_ARGUMENT")
PARSE: Final = Error(-32700, 400, "INVALID_ARGUMENT")
