"""Push notification configs: nested and with several schemes in 0.3, flat and with one scheme in 1.0."""

from __future__ import annotations

from typing import Final

from passerelle.a2a_mapping.members import object_at, text_at, texts_at
from passerelle.a2a_mapping.v0_3.forms import Form, map_object, rename
from passerelle.core.wire.json import JsonObject

CONFIGS: Final = "pushNotificationConfigs"
NESTED: Final = "pushNotificationConfig"


def read_config(config: JsonObject) -> JsonObject:
    """The config itself, without its task."""
    read = rename(config, {})
    if "authentication" in read:
        read["authentication"] = map_object(read["authentication"], _read_authentication)
    return read


def write_config(config: JsonObject) -> JsonObject:
    """The config itself in 0.3, without its task."""
    written: JsonObject = {
        name: value for name, value in config.items() if name not in {"taskId", "tenant"} and value
    }
    if "authentication" in written:
        written["authentication"] = map_object(written["authentication"], _write_authentication)
    return written


def read_task_config(value: JsonObject) -> JsonObject:
    """A 1.0 TaskPushNotificationConfig; in ProtoJSON the resource name has task and config."""
    renamed = rename(value, {"task_id": "taskId", "push_notification_config": NESTED})
    read = read_config(object_at(renamed, NESTED))
    task, config = split_name(text_at(renamed, "name"))
    task = text_at(renamed, "taskId") or task
    if task:
        read["taskId"] = task
    if config:
        read.setdefault("id", config)
    return read


def write_task_config(config: JsonObject, form: Form) -> JsonObject:
    """A TaskPushNotificationConfig of 0.3."""
    task = text_at(config, "taskId")
    nested = write_config(config)
    if form is Form.KIND:
        return {"taskId": task, NESTED: nested}
    return {"name": f"tasks/{task}/{CONFIGS}/{text_at(config, 'id')}", NESTED: nested}


def split_name(name: str) -> tuple[str, str]:
    """Task and config of a resource name; empty if not named."""
    words = name.split("/")
    task = words[1] if len(words) > 1 and words[0] == "tasks" else ""
    named = len(words) > 3 and words[2] == CONFIGS  # noqa: PLR2004  tasks/<id>/pushNotificationConfigs/<id>
    return task, words[3] if named else ""


def _read_authentication(authentication: JsonObject) -> JsonObject:
    read = rename(authentication, {})
    schemes = texts_at(read, "schemes")
    read.pop("schemes", None)
    if schemes:
        # 1.0 has one; the first is the preferred one.
        read["scheme"] = schemes[0]
    return read


def _write_authentication(authentication: JsonObject) -> JsonObject:
    written: JsonObject = {
        name: value for name, value in authentication.items() if name != "scheme" and value
    }
    scheme = text_at(authentication, "scheme")
    return {"schemes": [scheme] if scheme else [], **written}
