"""Compiles the definition of a frame into its reader, its writer and its JSON Schema.

A frame is a frozen dataclass with a ``TAG``, its type on the wire. Each field is annotated with the ``Wire`` that
carries it. A field may be absent or null if it has a default or may be None.

Readers and writers are generated per frame, since many devices may send frames at once.
"""

# Frame annotations are evaluated at run time, those of the base class included.

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields
from types import NoneType
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    Generic,
    Protocol,
    TypeVar,
    get_args,
    get_type_hints,
)

from passerelle.core.wire.generated import make_function
from passerelle.core.wire.json import Json, JsonObject
from passerelle.protocol.members import AsItIs, ObjectValue, Text, Wire, read_items

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from dataclasses import Field


class Frame:
    """Members of every frame besides its fields: its type, and members with a fixed value."""

    __slots__ = ()
    TAG: ClassVar[str]
    FIXED: ClassVar[Mapping[str, Json]] = {}


F = TypeVar("F", bound=Frame)
F_co = TypeVar("F_co", bound=Frame, covariant=True)


class Reader(Protocol[F_co]):
    """Reads a frame from its members; ``at`` prefixes member names in a refusal."""

    def __call__(self, members: JsonObject, at: str = "") -> F_co: ...


@dataclass(frozen=True, slots=True)
class Member:
    """One field of a frame, and its wire form."""

    field: Field[Any]
    wire: Wire
    needed: bool


class FrameCodec(Generic[F]):
    """Reads and writes one type of frame, and makes its schema."""

    __slots__ = ("kind", "members", "read", "write")

    def __init__(self, kind: type[F]) -> None:
        hints = get_type_hints(kind, include_extras=True)
        self.kind = kind
        self.members = tuple(
            _read_definition(item, hints[item.name])
            for item in fields(kind)  # type: ignore[arg-type] # pyright: ignore[reportArgumentType] - frames are dataclasses
        )
        self.read: Reader[F] = _make_reader(kind, self.members)
        """Reads a frame. Raises InvalidInput or BadCursor if a member is missing or wrong."""
        self.write: Callable[[F], JsonObject] = _make_writer(kind, self.members)
        """The members on the wire, without empty ones."""

    def make_schema(self) -> JsonObject:
        """The JSON Schema of the frame; unknown members are allowed, since later versions add some."""
        shown: JsonObject = {"t": {"const": self.kind.TAG}}
        shown |= {name: {"const": value} for name, value in self.kind.FIXED.items()}
        needed: list[Json] = ["t", *self.kind.FIXED]
        for member in self.members:
            wire = member.wire
            about: JsonObject = {"description": wire.about} if wire.about else {}
            shown[wire.name] = {**wire.kind.make_schema(), **about}
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
    """A list of frames of one type inside another; they carry no ``t``."""

    __slots__ = ("_codec", "_most")

    def __init__(self, kind: type[F], most: int) -> None:
        self._codec = FrameCodec(kind)
        self._most = most

    def read(self, value: Json, at: str) -> tuple[F, ...]:
        items = read_items(value, at, self._most)
        return tuple(
            self._codec.read(ObjectValue().read(item, f"{at}[{index}]"), f"{at}[{index}].")
            for index, item in enumerate(items)
        )

    def write(self, value: tuple[F, ...]) -> Json:
        written: list[Json] = []
        for frame in value:
            spelled = self._codec.write(frame)
            del spelled["t"]
            written.append(spelled)
        return written

    def make_schema(self) -> JsonObject:
        drawn = self._codec.make_schema()
        properties, required = drawn["properties"], drawn["required"]
        if isinstance(properties, dict) and isinstance(required, list):
            drawn["properties"] = {name: it for name, it in properties.items() if name != "t"}
            drawn["required"] = [name for name in required if name != "t"]
        return {"type": "array", "maxItems": self._most, "items": drawn}


def _read_definition(field: Field[Any], hint: Any) -> Member:  # noqa: ANN401 - an annotation has no type of its own
    wire = next(extra for extra in hint.__metadata__ if isinstance(extra, Wire))
    has_default = field.default is not MISSING or field.default_factory is not MISSING
    may_be_none = NoneType in get_args(get_args(hint)[0])
    return Member(field, wire, needed=not (has_default or may_be_none))


def _make_reader(kind: type[F], members: Sequence[Member]) -> Reader[F]:
    known: dict[str, object] = {"kind": kind}
    lines = ["get = members.get"]
    for place, member in enumerate(members):
        name, value = member.wire.name, f"value_{place}"
        known[f"read_{place}"] = member.wire.kind.read
        lines.append(f"{value} = get({name!r})")
        given = f"read_{place}({value}, at + {name!r})"
        if not member.needed:
            given = f"{_spell_default(member.field, place, known)} if {value} is None else {given}"
        lines.append(f"{value} = {given}")
    lines.append(f"return kind({', '.join(f'value_{place}' for place in range(len(members)))})")
    read: Reader[F] = make_function("read(members, at='')", lines, known)
    return read


def _spell_default(field: Field[Any], place: int, known: dict[str, object]) -> str:
    if field.default_factory is not MISSING:
        known[f"make_{place}"] = field.default_factory
        return f"make_{place}()"
    known[f"default_{place}"] = None if field.default is MISSING else field.default
    return f"default_{place}"


def _make_writer(kind: type[F], members: Sequence[Member]) -> Callable[[F], JsonObject]:
    known: dict[str, object] = {"begun": {"t": kind.TAG, **kind.FIXED}}
    lines = ["spelled = begun.copy()"]
    for place, member in enumerate(members):
        wire = member.wire
        lines.append(f"value = frame.{member.field.name}")
        test = "value" if isinstance(wire.kind, Text) else "value is not None"
        if not isinstance(wire.kind, Text | AsItIs):
            known[f"write_{place}"] = wire.kind.write
            lines.append(f"if {test}: value = write_{place}(value)")
        lines.append(f"if {test}: spelled[{wire.name!r}] = value")
    lines.append("return spelled")
    write: Callable[[F], JsonObject] = make_function("write(frame)", lines, known)
    return write
