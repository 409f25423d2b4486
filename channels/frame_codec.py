"""Compiles the definition of a frame into what reads it, writes it and draws it.

A frame is a frozen dataclass with a ``TAG``, its type on the wire. Each field is annotated with the ``Wire`` that
carries it. A field may be absent or null if it has a default or may be None.
"""

# The annotations of a frame are read at run time, those of its parent among them.

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields
from types import NoneType
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar, get_args, get_type_hints

from passerelle.channels.members import Record, Wire, read_items
from passerelle.core.json import Json, JsonObject

if TYPE_CHECKING:
    from dataclasses import Field


class Frame:
    """What every frame has beside its fields: its type, and members that always say the same."""

    __slots__ = ()
    TAG: ClassVar[str]
    FIXED: ClassVar[Mapping[str, Json]] = {}


F = TypeVar("F", bound=Frame)


@dataclass(frozen=True, slots=True)
class Member:
    """One field of a frame, and how it travels."""

    field: str
    wire: Wire
    has_default: bool
    needed: bool


class FrameCodec(Generic[F]):
    """Reads, writes and draws one type of frame."""

    __slots__ = ("kind", "members")

    def __init__(self, kind: type[F]) -> None:
        hints = get_type_hints(kind, include_extras=True)
        self.kind = kind
        self.members = tuple(
            _read_definition(item, hints[item.name])
            for item in fields(kind)  # type: ignore[arg-type] # pyright: ignore[reportArgumentType] - frames are dataclasses
        )

    def read(self, members: JsonObject, at: str = "") -> F:
        """The frame; ``at`` stands before the names of members in a refusal.

        Raises:
            InvalidInput, BadCursor: a member is missing or wrong.
        """
        values: dict[str, Any] = {}
        for member in self.members:
            wire = member.wire
            value = members.get(wire.name)
            if value is not None or member.needed:
                values[member.field] = wire.kind.read(value, at + wire.name)
            elif not member.has_default:
                values[member.field] = None
        return self.kind(**values)

    def write(self, frame: F) -> JsonObject:
        """The members on the wire, without those that say nothing."""
        spelled: JsonObject = {"t": self.kind.TAG, **self.kind.FIXED}
        for member in self.members:
            value = member.wire.kind.write(getattr(frame, member.field))
            if value is not None:
                spelled[member.wire.name] = value
        return spelled

    def draw(self) -> JsonObject:
        """The JSON Schema of the frame; unknown members are allowed, since later versions add some."""
        shown: JsonObject = {"t": {"const": self.kind.TAG}}
        shown |= {name: {"const": value} for name, value in self.kind.FIXED.items()}
        needed: list[Json] = ["t", *self.kind.FIXED]
        for member in self.members:
            wire = member.wire
            about: JsonObject = {"description": wire.about} if wire.about else {}
            shown[wire.name] = {**wire.kind.draw(), **about}
            if member.needed:
                needed.append(wire.name)
        return {
            "title": self.kind.__name__,
            "description": inspect.getdoc(self.kind) or "",
            "type": "object",
            "required": needed,
            "properties": shown,
        }


class Nested(Generic[F]):
    """A list of frames of one type inside another; they carry no type of their own."""

    __slots__ = ("_codec", "_most")

    def __init__(self, kind: type[F], most: int) -> None:
        self._codec = FrameCodec(kind)
        self._most = most

    def read(self, value: Json, at: str) -> tuple[F, ...]:
        items = read_items(value, at, self._most)
        return tuple(
            self._codec.read(Record().read(item, f"{at}[{index}]"), f"{at}[{index}].")
            for index, item in enumerate(items)
        )

    def write(self, value: tuple[F, ...]) -> Json:
        written: list[Json] = []
        for frame in value:
            spelled = self._codec.write(frame)
            del spelled["t"]
            written.append(spelled)
        return written

    def draw(self) -> JsonObject:
        drawn = self._codec.draw()
        properties, required = drawn["properties"], drawn["required"]
        if isinstance(properties, dict) and isinstance(required, list):
            drawn["properties"] = {name: it for name, it in properties.items() if name != "t"}
            drawn["required"] = [name for name in required if name != "t"]
        return {"type": "array", "maxItems": self._most, "items": drawn}


def _read_definition(field: Field[Any], hint: Any) -> Member:  # noqa: ANN401 - an annotation has no type of its own
    wire = next(extra for extra in hint.__metadata__ if isinstance(extra, Wire))
    has_default = field.default is not MISSING or field.default_factory is not MISSING
    may_be_none = NoneType in get_args(get_args(hint)[0])
    return Member(field.name, wire, has_default, needed=not (has_default or may_be_none))
