"""The operation of a request in any version: checks the version first, then the method name of that version (G7).

A call of 0.3 is read as one of 1.0 and answered as one of 0.3; the layers behind do not know the difference.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import orjson

from passerelle.a2a_mapping.inbound import read_send, read_task
from passerelle.a2a_mapping.members import object_at, read_object
from passerelle.a2a_mapping.rpc import Method, read_method, read_rpc
from passerelle.a2a_mapping.v0_3.calls import METHODS, LegacyCall, read_call
from passerelle.a2a_mapping.v0_3.forms import Form
from passerelle.a2a_mapping.version import CURRENT, LEGACY
from passerelle.core.errors import UnknownMethod, VersionNotSupported
from passerelle.core.wire.near import find_near
from passerelle.core.wire.record import value
from passerelle.gateway.a2a.frame_forms import end_with_turn

if TYPE_CHECKING:
    from passerelle.a2a_mapping.version import Version
    from passerelle.channels.stream_frame import Frames
    from passerelle.core.wire.json import Json, JsonObject

_CURRENT_NAMES: Final = frozenset(method.value for method in Method)


@value
class NormalizedCall:
    """An operation and its params in the form of 1.0; ``legacy`` is the original 0.3 call."""

    method: Method
    params: JsonObject
    legacy: LegacyCall | None = None

    @property
    def version(self) -> Version:
        """The caller's protocol version."""
        return CURRENT if self.legacy is None else LEGACY

    @property
    def form(self) -> Form | None:
        """The caller's spelling of 0.3."""
        return None if self.legacy is None else self.legacy.form

    def limit(self, batches: Frames) -> Frames:
        """The frames of a stream as long as the caller's version keeps it open."""
        if self.legacy is None:
            return batches
        message = object_at(self.params, "message")
        return end_with_turn(batches, follows_on=not message or bool(message.get("taskId")))

    def write_result(self, result: JsonObject) -> Json:
        """The result in the caller's version."""
        return result if self.legacy is None else self.legacy.write_result(result)


def normalize_rpc(
    version: Version, name: str, params: JsonObject, *, unsaid: bool = False
) -> NormalizedCall:
    """The operation of a JSON-RPC method in a version; ``unsaid``: the caller did not name the version.

    Raises:
    VersionNotSupported: a method of 1.0, called in 0.3.
    UnknownMethod: the version has no such method.
    """
    method = METHODS.get(name)
    if version == CURRENT:
        if method is not None:
            raise UnknownMethod(name, f"{method}, its name in {CURRENT}")
        return NormalizedCall(read_method(name), params)
    if method is not None:
        return _read_legacy(method, params, Form.KIND)
    if name in _CURRENT_NAMES:
        raise VersionNotSupported(version, (CURRENT,), unsaid=unsaid)
    raise UnknownMethod(name, find_near(name, METHODS))


def check_without_id(version: Version, body: bytes) -> None:
    """Checks method and params of a 0.3 request without an id first, as the SDKs of 0.3 do.

    Raises:
        UnknownMethod: no such method.
    InvalidInput: params that do not fit the method.
    """
    _, name, params = read_rpc(orjson.dumps({**read_object(body), "id": None}))
    asked = normalize_rpc(version, name, params)
    match asked.method:
        case Method.SEND_MESSAGE | Method.SEND_STREAMING_MESSAGE:
            read_send(asked.params)
        case Method.GET_TASK | Method.CANCEL_TASK | Method.SUBSCRIBE_TO_TASK:
            read_task(asked.params)
        case _:
            pass


def normalize_http(
    version: Version,
    path: tuple[Version, str],
    method: Method,
    params: JsonObject,
    *,
    unsaid: bool,
) -> NormalizedCall:
    """The operation of an HTTP+JSON path; ``path`` is its version and its name in errors.

    ``unsaid``: the caller did not name the version.

    Raises:
    VersionNotSupported: a path of 1.0, called in 0.3.
    UnknownMethod: a path of 0.3, called in 1.0.
    """
    served, name = path
    if served == version:
        return (
            NormalizedCall(method, params)
            if version == CURRENT
            else _read_legacy(method, params, Form.PROTO)
        )
    if served == CURRENT:
        raise VersionNotSupported(version, (CURRENT,), unsaid=unsaid)
    raise UnknownMethod(name)


def normalize_grpc(version: Version, method: Method, params: JsonObject) -> NormalizedCall:
    """The operation of a gRPC method; its service name determines the version."""
    if version == CURRENT:
        return NormalizedCall(method, params)
    configuration = params.get("configuration")
    if isinstance(configuration, dict) and configuration:
        # Protobuf has no absent booleans: a missing flag is false, so the call does not block. An empty configuration
        # states nothing: the Python SDK sends it if its caller gave none.
        params = {**params, "configuration": {"blocking": False, **configuration}}
    return _read_legacy(method, params, Form.PROTO)


def _read_legacy(method: Method, params: JsonObject, form: Form) -> NormalizedCall:
    call = read_call(method, params, form)
    return NormalizedCall(call.method, call.params, call)
