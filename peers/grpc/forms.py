"""The two gRPC services of agents, and how each writes a call: its method, its request, its answer. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, Protocol

from passerelle.a2a_mapping.members import text_at
from passerelle.a2a_mapping.rpc import Method
from passerelle.a2a_mapping.v0_3.calls import write_params
from passerelle.a2a_mapping.v0_3.forms import Form
from passerelle.a2a_mapping.v0_3.objects import read_task
from passerelle.a2a_mapping.v0_3.responses import read_response
from passerelle.peers.call import SENDS
from passerelle.peers.grpc.methods import V0_3, V1, GrpcMethod, GrpcService

if TYPE_CHECKING:
    from passerelle.a2a_mapping.version import Version
    from passerelle.core.wire.json import JsonObject
    from passerelle.peers.call import Operation, PeerCall
    from passerelle.peers.interface import Interface

_LEGACY_NAMES: Final[Mapping[Operation, str]] = {
    "SubscribeToTask": "TaskSubscription",
    "GetExtendedAgentCard": "GetAgentCard",
}


class GrpcForm(Protocol):
    """One service. It reads and writes the ProtoJSON of its messages."""

    @property
    def service(self) -> GrpcService:
        """The table of its methods."""
        ...

    def name(self, operation: Operation) -> str:
        """The method name of an operation."""
        ...

    def write(self, interface: Interface, call: PeerCall) -> JsonObject:
        """Writes the request."""
        ...

    def read(self, call: PeerCall, answer: JsonObject) -> JsonObject:
        """Reads the answer in the form of 1.0."""
        ...


class CurrentForm:
    """A2A 1.0 section 10."""

    service = V1

    def name(self, operation: Operation) -> str:
        return operation

    def write(self, interface: Interface, call: PeerCall) -> JsonObject:
        if interface.tenant is None:
            return call.params
        return {**call.params, "tenant": interface.tenant}

    def read(self, call: PeerCall, answer: JsonObject) -> JsonObject:
        if call.operation == "ListTasks":
            # ProtoJSON omits empty fields.
            return {"tasks": [], "nextPageToken": "", **answer}
        return answer


class LegacyForm:
    """A2A 0.3: tasks are resources with names; it has no list of them and no tenants."""

    service = V0_3

    def name(self, operation: Operation) -> str:
        return _LEGACY_NAMES.get(operation, operation)

    def write(self, interface: Interface, call: PeerCall) -> JsonObject:  # noqa: ARG002  0.3 has no tenant
        if call.operation == "GetExtendedAgentCard":
            return {}
        params = write_params(Method(call.operation), call.params, Form.PROTO)
        if call.operation in SENDS:
            return params
        if call.operation == "CreateTaskPushNotificationConfig":
            return {
                "parent": f"tasks/{text_at(call.params, 'taskId')}",
                "configId": text_at(call.params, "id"),
                "config": params,
            }
        return {**params, "name": f"tasks/{text_at(call.params, 'id')}"}

    def read(self, call: PeerCall, answer: JsonObject) -> JsonObject:
        match call.operation:
            case "SendMessage" | "SendStreamingMessage" | "SubscribeToTask":
                return read_response(answer, Form.PROTO)
            case "GetTask" | "CancelTask":
                return read_task(answer, Form.PROTO)
            case _:
                # The card reader accepts cards of 0.3, and returned push configs are ignored.
                return answer


FORMS: Final[Mapping[Version, GrpcForm]] = {"1.0": CurrentForm(), "0.3": LegacyForm()}


def find_row(form: GrpcForm, operation: Operation) -> GrpcMethod | None:
    """The method row of an operation; None if the service does not have it."""
    return form.service.rows.get(form.name(operation))
