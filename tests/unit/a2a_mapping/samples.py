"""Small builders of A2A objects for these tests."""

from __future__ import annotations

from collections.abc import Iterator

from passerelle.core.wire.json import Json, JsonObject


def combine(*objects: JsonObject) -> JsonObject:
    """The members of all objects; a later one wins."""
    combined: JsonObject = {}
    for item in objects:
        combined |= item
    return combined


def say(name: str, text: str = "hi", role: str = "ROLE_USER") -> JsonObject:
    """A Message with one text part."""
    return {"messageId": name, "role": role, "parts": [{"text": text}]}


def reply(name: str, text: str) -> JsonObject:
    """A Message of an agent."""
    return say(name, text, "ROLE_AGENT")


def list_texts(value: Json) -> Iterator[str]:
    """Every text in ``value``, names of members included."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for name, member in value.items():
            yield name
            yield from list_texts(member)
    elif isinstance(value, list):
        for item in value:
            yield from list_texts(item)
