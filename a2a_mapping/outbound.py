"""Requests to a peer, and frames to our callers.

Towards a peer the caller's params go on as they came, with the ids of the peer in place of ours; the
message id, the role, the parts and all metadata are not touched (agents route on them). Three things
stay here: the tenant, which is ours, a push configuration, which is served here, and ``historyLength``,
since our record needs the whole history and cuts it for the caller.
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
    """Where a message goes at the peer.

    ``context_id`` is the stored or minted one and goes along with the task id even if our caller gave only
    a task id: an SDK peer that gets a bare task id may write the parked task FAILED (a2a-python#1206).
    ``references`` are facade ids with the ids of the same tasks at this peer, ``parts`` what goes along in place of
    references that this peer could not follow (LT-10).
    """

    context_id: str | None = None
    task_id: str | None = None
    tenant: str | None = None
    references: Mapping[str, str] = field(default_factory=dict[str, str])
    parts: tuple[JsonObject, ...] = ()


def address_send(params: JsonObject, to: RemoteAddress) -> JsonObject:
    """Params of SendMessage or SendStreamingMessage for the peer, out of the caller's checked ones."""
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
    """The same params, with a push configuration of ours."""
    configuration: JsonObject = {
        **object_at(sent, "configuration"),
        "taskPushNotificationConfig": config,
    }
    return {**sent, "configuration": configuration}


def correlate(sent: JsonObject, key: str) -> JsonObject:
    """The same params, with a key of ours in the metadata of the message."""
    message = object_at(sent, "message")
    metadata: JsonObject = {**object_at(message, "metadata"), CORRELATION: key}
    return {**sent, "message": {**message, "metadata": metadata}}


def address_message(message: JsonObject, to: RemoteAddress) -> JsonObject:
    """The message with the peer's ids; a reference to a task that this peer does not have is left out."""
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
    """An artifact of a referenced task as parts for another peer; None if a part stands where only its agent gets it.

    The mark :data:`REFERENCE` in their metadata says which of the caller's references they come from (``place``,
    from 0), and the name of the artifact if it has one. No id goes along: it would mean nothing there. A part behind an
    address goes along with the address.
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
    """A part in place of an artifact that does not go along: what it is like, and why that is all (LT-10)."""
    mark: JsonObject = {"reference": place, "omitted": reason}
    if name := text_at(traits, "name"):
        mark["artifact"] = name
    return {"data": traits, "mediaType": "application/json", "metadata": {REFERENCE: mark}}
