"""A2A 1.0 over JSON-RPC (A2A 1.0 section 9). Pure.

It does not check the content of a result: an unknown state or an invalid frame is handled by the mapping.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import orjson

from passerelle.core.peer import Answered
from passerelle.peers import answers
from passerelle.peers.call import AgentReply, PeerRequest

if TYPE_CHECKING:
    from passerelle.core.peer import PeerOutcome
    from passerelle.peers.call import PeerCall
    from passerelle.peers.interface import Interface

_BARE_UPDATES: Final = {"status-update": "statusUpdate", "artifact-update": "artifactUpdate"}


class JsonRpc:
    """The wire format of JSON-RPC 1.0."""

    def write(self, interface: Interface, call: PeerCall, call_id: int) -> PeerRequest:
        params = call.params
        if interface.tenant is not None:
            params = {**params, "tenant": interface.tenant}
        envelope = {"jsonrpc": "2.0", "id": call_id, "method": call.operation, "params": params}
        return PeerRequest("POST", interface.url, orjson.dumps(envelope))

    def read(self, call: PeerCall, call_id: int, reply: AgentReply) -> PeerOutcome:  # noqa: ARG002  # every result has one form
        if reply.status == answers.OK and reply.retry_after is None:
            return answers.read_envelope(reply.raw, call_id)
        return answers.read_response(reply.status, reply.retry_after, reply.raw, call_id)

    def read_event(self, payload: bytes) -> PeerOutcome:
        return _wrap_update(answers.read_envelope(payload, None))


def _wrap_update(outcome: PeerOutcome) -> PeerOutcome:
    """Wraps an update in its 1.0 member: LangGraph agents mark it by ``kind``, as 0.3 does."""
    if not isinstance(outcome, Answered) or "kind" not in outcome.result:
        return outcome
    member = _BARE_UPDATES.get(str(outcome.result["kind"]))
    if member is None or member in outcome.result:
        return outcome
    return Answered({member: {k: v for k, v in outcome.result.items() if k != "kind"}})
