"""Calls of 0.3: maps method names, converts params to 1.0 and results to 0.3."""

from __future__ import annotations

from typing import Final

from passerelle.a2a_mapping.members import object_at, objects_at, text_at
from passerelle.a2a_mapping.rpc import Method
from passerelle.a2a_mapping.v0_3.forms import Form, drop_empty, map_object, rename
from passerelle.a2a_mapping.v0_3.objects import (
    read_message,
    write_message,
    write_task,
)
from passerelle.a2a_mapping.v0_3.push import (
    NESTED,
    read_config,
    read_task_config,
    split_name,
    write_config,
    write_task_config,
)
from passerelle.a2a_mapping.v0_3.responses import write_response
from passerelle.core.errors import NotFound
from passerelle.core.frozen import frozen
from passerelle.core.wire.json import Json, JsonObject

METHODS: Final = {
    "message/send": Method.SEND_MESSAGE,
    "message/stream": Method.SEND_STREAMING_MESSAGE,
    "tasks/get": Method.GET_TASK,
    "tasks/cancel": Method.CANCEL_TASK,
    "tasks/resubscribe": Method.SUBSCRIBE_TO_TASK,
    "tasks/pushNotificationConfig/set": Method.CREATE_PUSH_CONFIG,
    "tasks/pushNotificationConfig/get": Method.GET_PUSH_CONFIG,
    "tasks/pushNotificationConfig/list": Method.LIST_PUSH_CONFIGS,
    "tasks/pushNotificationConfig/delete": Method.DELETE_PUSH_CONFIG,
    "agent/getAuthenticatedExtendedCard": Method.GET_EXTENDED_CARD,
    # The spelling in the specification's text on the life of a task (LT-15).
    "message.send": Method.SEND_MESSAGE,
}
"""JSON-RPC names; 0.3 has no list of tasks."""
NAMES: Final = {method: name for name, method in reversed(METHODS.items())}

_SENDS: Final = frozenset({Method.SEND_MESSAGE, Method.SEND_STREAMING_MESSAGE})
_CONFIGURATION_NAMES: Final = {
    "accepted_output_modes": "acceptedOutputModes",
    "history_length": "historyLength",
    "push_notification_config": NESTED,
    "push_notification": NESTED,
    "pushNotification": NESTED,
}
_PUSH_ID_NAMES: Final = {
    "push_notification_config_id": "pushNotificationConfigId",
    "task_id": "taskId",
}


@frozen
class LegacyCall:
    """A call of 0.3 converted to 1.0. ``first`` takes the first of a list: 0.3 could ask for "the" config of a task."""

    method: Method
    params: JsonObject
    form: Form
    first: bool = False

    def write_result(self, result: JsonObject) -> Json:
        """The result in the form of 0.3.

        Raises:
            NotFound: the first of an empty list.
        """
        match self.method:
            case Method.SEND_MESSAGE | Method.SEND_STREAMING_MESSAGE | Method.SUBSCRIBE_TO_TASK:
                return write_response(result, self.form)
            case Method.GET_TASK | Method.CANCEL_TASK:
                return write_task(result, self.form)
            case Method.CREATE_PUSH_CONFIG | Method.GET_PUSH_CONFIG:
                return write_task_config(result, self.form)
            case Method.LIST_PUSH_CONFIGS:
                return self._write_configs(result)
            case Method.DELETE_PUSH_CONFIG:
                return None if self.form is Form.KIND else {}
            case _:
                return result

    def _write_configs(self, page: JsonObject) -> Json:
        configs: list[Json] = [
            write_task_config(config, self.form) for config in objects_at(page, "configs")
        ]
        if not self.first:
            return configs if self.form is Form.KIND else {"configs": configs}
        if not configs:
            raise NotFound("push notification config", text_at(self.params, "taskId"))
        return configs[0]


def read_call(method: Method, params: JsonObject, form: Form) -> LegacyCall:
    """The call in 1.0; malformed values stay, so that the readers of 1.0 name them."""
    match method:
        case Method.SEND_MESSAGE | Method.SEND_STREAMING_MESSAGE:
            return LegacyCall(method, _read_send(params, form), form)
        case Method.GET_TASK | Method.CANCEL_TASK | Method.SUBSCRIBE_TO_TASK:
            return LegacyCall(method, _read_task(params), form)
        case Method.CREATE_PUSH_CONFIG:
            return LegacyCall(method, _read_create(params), form)
        case Method.GET_PUSH_CONFIG | Method.LIST_PUSH_CONFIGS | Method.DELETE_PUSH_CONFIG:
            return _read_push(method, params, form)
        case _:
            return LegacyCall(method, params, form)


def write_params(method: Method, params: JsonObject, form: Form) -> JsonObject:
    """1.0 params of the operations on messages and tasks, for an agent that speaks 0.3."""
    if method is Method.CREATE_PUSH_CONFIG:
        return write_task_config(params, form)
    if method not in _SENDS:
        return drop_empty(dict(params), "historyLength", "metadata", "tenant")
    written = {name: value for name, value in params.items() if name != "tenant"}
    written["message"] = write_message(object_at(params, "message"), form)
    configuration = dict(object_at(params, "configuration"))
    # Always set, since agents differ in the default.
    blocking = configuration.pop("returnImmediately", None) is not True
    push = configuration.pop("taskPushNotificationConfig", None)
    if isinstance(push, dict):
        name = NESTED if form is Form.KIND else "pushNotification"
        configuration[name] = write_config(push)
    written["configuration"] = drop_empty({**configuration, "blocking": blocking}, "historyLength")
    return written


def _read_send(params: JsonObject, form: Form) -> JsonObject:
    read = rename(params, {"request": "message"})
    if "message" in read:
        read["message"] = map_object(read["message"], lambda one: read_message(one, form))
    if "configuration" in read:
        read["configuration"] = map_object(read["configuration"], _read_configuration)
    return read


def _read_configuration(configuration: JsonObject) -> JsonObject:
    read = rename(configuration, _CONFIGURATION_NAMES)
    blocking = read.pop("blocking", None)
    if blocking is not None:
        read["returnImmediately"] = not blocking if isinstance(blocking, bool) else blocking
    _lift_limit(read)
    if NESTED in read:
        read["taskPushNotificationConfig"] = map_object(read.pop(NESTED), read_config)
    return read


def _read_task(params: JsonObject) -> JsonObject:
    read = rename(params, {"history_length": "historyLength"})
    _name_task(read, "id")
    _lift_limit(read)
    return read


def _read_create(params: JsonObject) -> JsonObject:
    """JSON-RPC has the config in the params, ProtoJSON one level deeper, with an id and a resource name."""
    renamed = rename(params, {"config_id": "configId", "push_notification_config": NESTED})
    inner = object_at(renamed, "config") or renamed
    read = read_task_config(inner)
    if "configId" in renamed:
        read.setdefault("id", renamed["configId"])
    task = text_at(renamed, "taskId") or split_name(text_at(renamed, "parent"))[0]
    if task:
        read["taskId"] = task
    return read


def _read_push(method: Method, params: JsonObject, form: Form) -> LegacyCall:
    read = rename(params, _PUSH_ID_NAMES)
    if form is Form.KIND:
        # Here ``id`` is the task's.
        task, config = text_at(read, "id"), text_at(read, "pushNotificationConfigId")
    else:
        task, config = split_name(text_at(read, "name") or text_at(read, "parent"))
        task, config = text_at(read, "taskId") or task, text_at(read, "id") or config
    named: JsonObject = {"taskId": task}
    if method is Method.LIST_PUSH_CONFIGS:
        return LegacyCall(method, named, form)
    if method is Method.GET_PUSH_CONFIG and not config:
        return LegacyCall(Method.LIST_PUSH_CONFIGS, named, form, first=True)
    return LegacyCall(method, {**named, "id": config}, form)


def _name_task(read: JsonObject, member: str) -> None:
    """ProtoJSON names a task as ``tasks/<id>``; an existing id takes precedence."""
    name = read.pop("name", None)
    if member not in read and isinstance(name, str):
        read[member] = split_name(name)[0] or name


def _lift_limit(read: JsonObject) -> None:
    """0.3 reads a length of 0 as no limit."""
    if read.get("historyLength") in (0, "0"):
        del read["historyLength"]
