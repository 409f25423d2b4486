"""Hand-written A2A 1.0 and 0.3 over JSON-RPC and HTTP+JSON.

Calls are written in the form of 1.0 and converted to older forms here; answers are read into one form without ids and
times.
"""

from __future__ import annotations

from typing import Any, Final, TypeAlias, cast

Json: TypeAlias = dict[str, Any]

_METHODS: Final = {
    "SendMessage": "message/send",
    "SendStreamingMessage": "message/stream",
    "GetTask": "tasks/get",
    "CancelTask": "tasks/cancel",
    "SubscribeToTask": "tasks/resubscribe",
}
_PATHS: Final = {
    "SendMessage": ("POST", "/message:send"),
    "SendStreamingMessage": ("POST", "/message:stream"),
    "GetTask": ("GET", "/tasks/{id}"),
    "CancelTask": ("POST", "/tasks/{id}:cancel"),
    "SubscribeToTask": ("POST", "/tasks/{id}:subscribe"),
}
ROLES: Final = {"ROLE_USER": "user", "ROLE_AGENT": "agent"}


def inner(value: Json, name: str) -> Json:
    """The object at a member; empty if there is none."""
    found = value.get(name)
    return cast("Json", found) if isinstance(found, dict) else Json()


def several(value: Json, name: str) -> list[Json]:
    """The objects in the list at a member."""
    return cast("list[Json]", value.get(name) or [])


def name_method(operation: str, version: str) -> str:
    """The method of JSON-RPC."""
    return operation if version == "1.0" else _METHODS[operation]


def name_path(operation: str, params: Json, version: str) -> tuple[str, str]:
    """Verb and path of HTTP+JSON; 0.3 subscribes with GET in the Python SDK and with POST in the specification."""
    verb, path = _PATHS[operation]
    return verb, ("" if version == "1.0" else "/v1") + path.format(**params)


def find_operation(method: str) -> str:
    """The operation of a method of JSON-RPC of either version, or of a path of HTTP+JSON."""
    older = {older: newer for newer, older in _METHODS.items()}
    if method in older or method in _METHODS:
        return older.get(method, method)
    return {"message:send": "SendMessage", "message:stream": "SendStreamingMessage"}.get(
        method.rpartition("/")[2], ""
    )


def write_params(params: Json, binding: str, version: str) -> Json:
    """The params of a call, given in the form of 1.0."""
    if version == "1.0" or "message" not in params:
        return params
    message, configuration = dict(params["message"]), dict(params.get("configuration", {}))
    configuration["blocking"] = not configuration.pop("returnImmediately", False)
    parts = message.pop("parts")
    if binding == "JSONRPC":
        message |= {"kind": "message", "role": ROLES[message["role"]]}
        message["parts"] = [_write_part(part) for part in parts]
    else:
        message["content"] = [_write_proto_part(part) for part in parts]
        message.pop("referenceTaskIds", None)  # its protobuf has none
    return {**params, "message": message, "configuration": configuration}


def _write_part(part: Json) -> Json:
    rest = {"metadata": part["metadata"]} if "metadata" in part else {}
    if "text" in part:
        return {"kind": "text", "text": part["text"], **rest}
    if "data" in part:
        return {"kind": "data", "data": part["data"], **rest}
    file = {"bytes": part["raw"]} if "raw" in part else {"uri": part["url"]}
    return {"kind": "file", "file": {**file, **_name_file(part)}, **rest}


def _write_proto_part(part: Json) -> Json:
    rest = {"metadata": part["metadata"]} if "metadata" in part else {}
    if "text" in part:
        return {"text": part["text"], **rest}
    if "data" in part:
        return {"data": {"data": part["data"]}, **rest}
    file = {"fileWithBytes": part["raw"]} if "raw" in part else {"fileWithUri": part["url"]}
    return {"file": {**file, **_name_file(part)}, **rest}


def _name_file(part: Json) -> Json:
    found = {"name": part.get("filename"), "mimeType": part.get("mediaType")}
    return {name: value for name, value in found.items() if value}


def read_part(part: Json) -> Json:
    """A part of any version in the form of 1.0."""
    rest = {"metadata": part["metadata"]} if part.get("metadata") else {}
    if "file" in part:
        file = cast("Json", part["file"])
        raw = file.get("bytes", file.get("fileWithBytes"))
        found: Json = {"raw": raw} if raw else {"url": file.get("uri", file.get("fileWithUri"))}
        named = {"filename": file.get("name"), "mediaType": file.get("mimeType")}
        return found | {name: value for name, value in named.items() if value} | rest
    if "data" in part:
        held = inner(part, "data")
        is_wrapped = "kind" not in part and list(held) == ["data"]
        return {"data": held["data"] if is_wrapped else part["data"]} | rest
    # Only a file has a media type in 0.3, so that of text is ignored.
    kept = ("text",) if "text" in part else ("raw", "url", "filename", "mediaType")
    return {name: part[name] for name in kept if part.get(name)} | rest


def read_parts(message: Json) -> list[Json]:
    """The parts of a message or an artifact."""
    return [read_part(part) for part in several(message, "parts") or several(message, "content")]


def read_role(message: Json) -> str:
    """``user`` or ``agent``."""
    said = str(message.get("role", ""))
    return ROLES.get(said, said)


def read_state(value: Json) -> str:
    """The state of a Task or a status update in the form of 1.0, without the prefix; empty if there is none."""
    said = str(inner(value, "status").get("state", ""))
    return (
        said.removeprefix("TASK_STATE_").upper().replace("-", "_").replace("CANCELLED", "CANCELED")
    )


def read_words(value: Json) -> list[Json]:
    """The parts of the status message."""
    status = inner(value, "status")
    return read_parts(inner(status, "message") or inner(status, "update"))


def unwrap(result: Json) -> tuple[str, Json]:
    """The kind of an answer or stream item, ``task``, ``message``, ``status`` or ``artifact``, and its content."""
    kinds = {
        "task": "task",
        "message": "message",
        "msg": "message",
        "statusUpdate": "status",
        "artifactUpdate": "artifact",
        "status-update": "status",
        "artifact-update": "artifact",
    }
    if "kind" in result:
        return kinds[result["kind"]], result
    for name, kind in kinds.items():
        if name in result and isinstance(result[name], dict) and "status" not in result:
            return kind, result[name]
    return "task", result
