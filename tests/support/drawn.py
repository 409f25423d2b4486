"""Random values of A2A types: JSON drawn from the message descriptors with a seed.

A required member is always present, members of a ``oneof`` exclude each other, any other member is present by chance.
New members of A2A are therefore drawn without a change here.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, cast

from a2a.types import a2a_pb2
from google.protobuf.descriptor import FieldDescriptor

if TYPE_CHECKING:
    import random  # noqa: TID251  the argument

    from google.protobuf.descriptor import Descriptor
    from google.protobuf.message import Message

    from passerelle.core.wire.json import Json, JsonObject

TEXTS: Final = (
    "",
    " ",
    "hello",
    '"',
    "\\",
    "%b %% %s",
    "\0",
    "{7f}",
    "\n\n two\nlines",
    "é\u2028😀" * 40,
    "x" * 2500,
    "https://agent.example/a?b=c#d",
    "text/plain",
    "2026-01-01T00:00:00Z",
    "task_0123456789",
)
"""Texts that could break a parser: quotes, placeholders, lengths, argument separators, other types, and a shard that
does not exist.
"""
_NUMBERS: Final = (0, -1, 1.5, 1e300, 2**53, 0.1)
_DEPTH: Final = 3
_LIKELY: Final = 0.35
_STRUCT: Final = "google.protobuf.Struct"
_VALUE: Final = "google.protobuf.Value"
_REQUIRED: Final = "[google.api.field_behavior]: REQUIRED"
_TIME: Final = "google.protobuf.Timestamp"


@dataclass(slots=True)
class Drawer:
    """Draws with one random source. ``fixed`` members are set by name and not drawn."""

    chance: random.Random

    def message(self, **fixed: Json) -> JsonObject:
        """A Message without task and context ids, except those in ``fixed``."""
        drawn = self._draw(_describe(a2a_pb2.Message))
        for name in ("contextId", "taskId", "referenceTaskIds"):
            drawn.pop(name, None)
        return {**drawn, **fixed}

    def task(self, **fixed: Json) -> JsonObject:
        """A Task."""
        return {**self._draw(_describe(a2a_pb2.Task)), **fixed}

    def _draw(self, descriptor: Descriptor) -> JsonObject:
        drawn: JsonObject = {}
        chosen = {one.name: self.chance.choice(one.fields).name for one in descriptor.oneofs}
        for one in descriptor.fields:
            if one.containing_oneof is not None:
                if chosen[one.containing_oneof.name] == one.name:
                    drawn[one.json_name] = self._value(one)
                continue
            is_wanted = _is_required(one)
            if not is_wanted and self.chance.random() > _LIKELY:
                continue
            if one.is_repeated:
                count = self.chance.randint(int(is_wanted), 3)
                drawn[one.json_name] = [self._value(one) for _ in range(count)]
            else:
                drawn[one.json_name] = self._value(one)
        return drawn

    def _value(self, one: FieldDescriptor) -> Json:
        match one.type:
            case FieldDescriptor.TYPE_STRING:
                text = self.chance.choice(TEXTS)
                return text or "id" if _is_required(one) else text
            case FieldDescriptor.TYPE_BYTES:
                return base64.b64encode(self.chance.randbytes(self.chance.randint(0, 40))).decode()
            case FieldDescriptor.TYPE_BOOL:
                return self.chance.random() < 0.5
            case FieldDescriptor.TYPE_ENUM:
                assert one.enum_type is not None
                return str(self.chance.choice(one.enum_type.values[1:]).name)
            case FieldDescriptor.TYPE_MESSAGE:
                assert one.message_type is not None
                return self._inner(one.message_type)
            case _:
                raise AssertionError(f"a kind of member that is not drawn yet: {one.full_name}")

    def _inner(self, descriptor: Descriptor) -> Json:
        if descriptor.full_name == _STRUCT:
            return self._members(0)
        if descriptor.full_name == _VALUE:
            return self._json(0)
        if descriptor.full_name == _TIME:
            return f"2026-0{self.chance.randint(1, 9)}-01T00:00:00{self.chance.choice(('', '.5', '.123456'))}Z"
        return self._draw(descriptor)

    def _members(self, depth: int) -> JsonObject:
        count = self.chance.randint(0, 3)
        return {self.chance.choice(TEXTS): self._json(depth + 1) for _ in range(count)}

    def _json(self, depth: int) -> Json:
        kind = self.chance.randint(0, 5 if depth < _DEPTH else 3)
        match kind:
            case 0:
                return self.chance.choice(TEXTS)
            case 1:
                return self.chance.choice(_NUMBERS)
            case 2:
                return self.chance.random() < 0.5
            case 3:
                return None
            case 4:
                return [self._json(depth + 1) for _ in range(self.chance.randint(0, 3))]
            case _:
                return self._members(depth)


def _describe(message: type[Message]) -> Descriptor:
    return cast("Descriptor", message.DESCRIPTOR)


def _is_required(one: FieldDescriptor) -> bool:
    return _REQUIRED in str(one.GetOptions())
