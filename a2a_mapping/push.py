"""Push notification configs: between A2A 1.0 JSON and internal values (A2A 1.0 sections 4.3 and 9.4.7)."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from passerelle.a2a_mapping.members import as_list, read_text, read_whole, require_text
from passerelle.core.errors import InvalidInput
from passerelle.core.frozen import frozen
from passerelle.core.push import PushConfig

if TYPE_CHECKING:
    from collections.abc import Sequence

    from passerelle.core.push import PushDialect
    from passerelle.core.wire.json import JsonObject

ID_LIMIT: Final = 255
URL_LIMIT: Final = 2_048
SECRET_LIMIT: Final = 4_096
PAGE_SIZE_MAX: Final = 100
_NAMES: Final = {"task_id": "taskId", "page_size": "pageSize", "page_token": "pageToken"}
_SCHEME: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,64}", re.ASCII)
_HEADER_SAFE: Final = re.compile(r"[\x21-\x7e](?:[\x20-\x7e]*[\x21-\x7e])?", re.ASCII)


@frozen
class ConfigName:
    """Names a config, or (``id`` None) all configs of a task."""

    task: str
    id: str | None


@frozen
class ConfigPage:
    """ListTaskPushNotificationConfigs."""

    task: str
    page_size: int | None
    page_token: str | None


def read_config(params: JsonObject, dialect: PushDialect, path: str = "") -> PushConfig:
    """A TaskPushNotificationConfig; its task and whether its address may be called are checked elsewhere.

    Raises:
        InvalidInput: a field is missing, malformed, or not allowed in a header; naming it.
    """
    authentication = params.get("authentication")
    if authentication is not None and not isinstance(authentication, dict):
        raise InvalidInput(f"{path}authentication", "must be an object")
    scheme, credentials = None, None
    if authentication:
        scheme = require_text(authentication, "scheme", f"{path}authentication.")
        if not _SCHEME.fullmatch(scheme):
            raise InvalidInput(f"{path}authentication.scheme", "is not the name of an HTTP scheme")
        credentials = _read_secret(authentication, "credentials", f"{path}authentication.")
    config_id = read_text(params, "id", path)
    if config_id is not None:
        check_id(config_id, f"{path}id")
    return PushConfig(
        url=require_text(params, "url", path, limit=URL_LIMIT),
        id=config_id,
        token=_read_secret(params, "token", path),
        scheme=scheme,
        credentials=credentials,
        dialect=dialect,
    )


def read_create(params: JsonObject, dialect: PushDialect) -> tuple[str, PushConfig]:
    """CreateTaskPushNotificationConfig: the task and its config."""
    named = _rename(params)
    return require_text(named, "taskId"), read_config(named, dialect)


def read_name(params: JsonObject) -> ConfigName:
    """GetTaskPushNotificationConfig and DeleteTaskPushNotificationConfig; 0.3 may omit the config's id."""
    named = _rename(params)
    return ConfigName(require_text(named, "taskId"), read_text(named, "id"))


def read_page(params: JsonObject) -> ConfigPage:
    """ListTaskPushNotificationConfigs."""
    named = _rename(params)
    return ConfigPage(
        require_text(named, "taskId"),
        read_whole(named, "pageSize", high=PAGE_SIZE_MAX),
        read_text(named, "pageToken"),
    )


def check_id(config_id: str, path: str) -> None:
    """Raises InvalidInput for a config id that is not allowed in a key."""
    if len(config_id) > ID_LIMIT or not config_id.isprintable():
        raise InvalidInput(path, f"must have 1 to {ID_LIMIT} printable characters")


def render_config(task: str, config: PushConfig) -> JsonObject:
    """A TaskPushNotificationConfig of a task."""
    rendered: JsonObject = {"taskId": task, "id": config.id, "url": config.url}
    if config.token is not None:
        rendered["token"] = config.token
    if config.scheme is not None:
        authentication: JsonObject = {"scheme": config.scheme}
        if config.credentials is not None:
            authentication["credentials"] = config.credentials
        rendered["authentication"] = authentication
    return rendered


def render_configs(configs: Sequence[JsonObject], next_token: str) -> JsonObject:
    """A page of configs; both members are always present."""
    return {"configs": as_list([*configs]), "nextPageToken": next_token}


def _read_secret(holder: JsonObject, name: str, path: str) -> str | None:
    value = read_text(holder, name, path, limit=SECRET_LIMIT)
    if value is not None and not _HEADER_SAFE.fullmatch(value):
        raise InvalidInput(path + name, "must be visible ASCII, since it is sent in a header")
    return value


def _rename(params: JsonObject) -> JsonObject:
    renamed = {**params}
    for snake, camel in _NAMES.items():
        if snake in renamed:
            renamed.setdefault(camel, renamed.pop(snake))
    return renamed
