"""A2A 0.3 over JSON-RPC and HTTP+JSON: writes calls of 1.0 under their 0.3 names, reads answers as 1.0. Pure.

Every method has its 0.3 name: a peer called by mixed names answers "method not found".
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import orjson

from passerelle.a2a_mapping.rpc import Method
from passerelle.a2a_mapping.v0_3.calls import NAMES, write_params
from passerelle.a2a_mapping.v0_3.forms import Form
from passerelle.a2a_mapping.v0_3.objects import read_task
from passerelle.a2a_mapping.v0_3.responses import read_response
from passerelle.core.peer import Answered
from passerelle.peers import answers, http_json
from passerelle.peers.call import SENDS, AgentReply, PeerRequest

if TYPE_CHECKING:
    from passerelle.core.peer import PeerOutcome
    from passerelle.peers.call import PeerCall
    from passerelle.peers.interface import Interface

_SUBSCRIBE: Final = "SubscribeToTask"
_EXTENDED: Final = "GetExtendedAgentCard"
_UNCHANGED: Final = frozenset({_EXTENDED, "CreateTaskPushNotificationConfig"})
"""The card reader accepts cards of 0.3, and returned push configs are ignored."""


class LegacyJsonRpc:
    """The wire format of JSON-RPC 0.3."""

    def write(self, interface: Interface, call: PeerCall, call_id: int) -> PeerRequest:
        method = Method(call.operation)
        envelope = {
            "jsonrpc": "2.0",
            "id": call_id,
            "method": NAMES[method],
            "params": write_params(method, call.params, Form.KIND),
        }
        return PeerRequest("POST", interface.url, orjson.dumps(envelope))

    def read(self, call: PeerCall, call_id: int, reply: AgentReply) -> PeerOutcome:
        outcome = answers.read_response(reply.status, reply.retry_after, reply.raw, call_id)
        return _upgrade(call, outcome, Form.KIND)

    def read_event(self, payload: bytes) -> PeerOutcome:
        return _upgrade_frame(answers.read_envelope(payload, None), Form.KIND)


class LegacyHttpJson:
    """The wire format of HTTP+JSON 0.3, with bodies in ProtoJSON of the package ``a2a.v1``."""

    def write(self, interface: Interface, call: PeerCall, call_id: int) -> PeerRequest:  # noqa: ARG002  # a connection answers in order
        body = orjson.dumps(write_params(Method(call.operation), call.params, Form.PROTO))
        base = f"{interface.url.rstrip('/')}/v1"
        if call.operation == _EXTENDED:
            return PeerRequest("GET", f"{base}/card")
        request = http_json.address(base, call, body)
        # The specification uses POST in one place and GET in another; agents with the Python SDK have GET only.
        return PeerRequest("GET", request.url) if call.operation == _SUBSCRIBE else request

    def read(self, call: PeerCall, call_id: int, reply: AgentReply) -> PeerOutcome:  # noqa: ARG002
        return _upgrade(call, http_json.read_reply(call, reply), Form.PROTO)

    def read_event(self, payload: bytes) -> PeerOutcome:
        return _upgrade_frame(http_json.read_event(payload), Form.PROTO)


def _upgrade(call: PeerCall, outcome: PeerOutcome, form: Form) -> PeerOutcome:
    if not isinstance(outcome, Answered) or call.operation in _UNCHANGED:
        return outcome
    if call.operation in SENDS or call.operation == _SUBSCRIBE:
        return _upgrade_frame(outcome, form)
    return Answered(read_task(outcome.result, form))


def _upgrade_frame(outcome: PeerOutcome, form: Form) -> PeerOutcome:
    if isinstance(outcome, Answered):
        return Answered(read_response(outcome.result, form))
    return outcome
