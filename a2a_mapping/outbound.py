"""Requests to an agent.

The caller's params are forwarded with the agent's ids; the message id, the role, the parts and all metadata stay
unchanged (agents route on them). Three things are not forwarded: the tenant, which is the gateway's, a push
configuration, which is served here, and ``historyLength``, since the record needs the whole history and cuts it for the
caller.
"""

from __future__ import annotations

from dataclasses import field
from typing import TYPE_CHECKING, Final

from passerelle.a2a_mapping.extensions import AFTER, CORRELATION, REFERENCE
from passerelle.a2a_mapping.members import as_list, object_at, objects_at, text_at, texts_at
from passerelle.core.ports.blobs import UPLOADED
from passerelle.core.wire.record import value

if TYPE_CHECKING:
    from collections.abc import Mapping

    from passerelle.core.wire.json import Json, JsonObject

_OURS: Final = ("taskId", "contextId", "referenceTaskIds")
_KEPT_HERE: Final = frozenset({"historyLength", "taskPushNotificationConfig"})


@value
class RemoteAddress:
    """The address of a message at the agent.

    ``context_id`` is the stored or minted one and is sent with the task id even if the caller gave only a task id: an
    SDK agent that gets a bare task id may write the parked task FAILED (a2a-python#1206). ``references`` maps facade
    ids to the ids of the same tasks at this agent, ``parts`` replace references that this agent could not resolve
    (LT-10).
    """

    context_id: str | None = None
    task_id: str | None = None
    tenant: str | None = None
    references: Mapping[str, str] = field(default_factory=dict[str, str])
    parts: tuple[JsonObject, ...] = ()


def address_send(params: JsonObject, to: RemoteAddress) -> JsonObject:
    """Params of SendMessage or SendStreamingMessage for the agent, from the caller's checked ones."""
    sent: JsonObject = {**params, "message": address_message(object_at(params, "message"), to)}
    if to.tenant:
        sent["tenant"] = to.tenant
    elif "tenant" in sent:
        del sent["tenant"]
    if "configuration" in sent:
        asked = object_at(sent, "configuration")
        kept = {name: value for name, value in asked.items() if name not in _KEPT_HERE}
        if kept:
            sent["configuration"] = kept
        else:
            del sent["configuration"]
    return sent


def add_push_config(sent: JsonObject, config: JsonObject) -> JsonObject:
    """The same params, with the gateway's push configuration."""
    configuration: JsonObject = {
        **object_at(sent, "configuration"),
        "taskPushNotificationConfig": config,
    }
    return {**sent, "configuration": configuration}


def correlate(sent: JsonObject, key: str) -> JsonObject:
    """The same params, with a correlation key in the metadata of the message."""
    message = object_at(sent, "message")
    metadata: JsonObject = {**object_at(message, "metadata"), CORRELATION: key}
    return {**sent, "message": {**message, "metadata": metadata}}


def address_message(message: JsonObject, to: RemoteAddress) -> JsonObject:
    """The message with the agent's ids; a reference to a task that this agent does not have is left out."""
    sent: JsonObject = {**message}
    for name in _OURS:
        if name in sent:
            del sent[name]
    if "metadata" in sent and AFTER in (metadata := object_at(sent, "metadata")):
        sent["metadata"] = {name: one for name, one in metadata.items() if name != AFTER}
    if to.context_id:
        sent["contextId"] = to.context_id
    if to.task_id:
        sent["taskId"] = to.task_id
    if to.references:
        references: list[Json] = [
            to.references[facade]
            for facade in texts_at(message, "referenceTaskIds")
            if facade in to.references
        ]
        if references:
            sent["referenceTaskIds"] = references
    if to.parts:
        sent["parts"] = as_list([*objects_at(message, "parts"), *to.parts])
    return sent


def quote_artifact(artifact: JsonObject, place: int) -> list[JsonObject] | None:
    """An artifact of a referenced task as parts for another agent; None if a part is an upload of its own agent.

    The mark :data:`REFERENCE` in their metadata has the index of the caller's reference (``place``, from 0), and the
    name of the artifact if it has one. Ids are left out: they would mean nothing there. A part with a URL keeps the
    URL.
    """
    mark: JsonObject = {"reference": place}
    if name := text_at(artifact, "name"):
        mark["artifact"] = name
    quoted: list[JsonObject] = []
    for part in objects_at(artifact, "parts"):
        if text_at(part, "url").startswith(UPLOADED):
            return None
        quoted.append({**part, "metadata": {**object_at(part, "metadata"), REFERENCE: mark}})
    return quoted


def describe_artifact(traits: JsonObject, place: int, reason: str) -> JsonObject:
    """A part instead of an artifact that is not sent: its properties, and the reason (LT-10)."""
    mark: JsonObject = {"reference": place, "omitted": reason}
    if name := text_at(traits, "name"):
        mark["artifact"] = name
    return {"data": traits, "mediaType": "application/json", "metadata": {REFERENCE: mark}}
