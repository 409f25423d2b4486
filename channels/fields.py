"""Typed reading of the members of a frame; every refusal names the member."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeVar

from passerelle.channels.cursor import Cursor, parse_cursor
from passerelle.core.errors import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Mapping

    from passerelle.core.json import Json, JsonObject

_Word = TypeVar("_Word", bound=str)

SHORT: Final = 128
"""Characters in an id, a key, a device or tab name."""
NAME: Final = 255
TOKEN: Final = 8_192
SAFE_INTEGER: Final = 2**53 - 1
"""The largest integer that every JSON reader keeps."""


class Fields:
    """The members of one frame. Every method raises InvalidInput (or BadCursor) with the member's name."""

    __slots__ = ("_members",)

    def __init__(self, members: JsonObject) -> None:
        self._members = members

    def text(self, name: str, limit: int = SHORT) -> str:
        """A non-empty text of at most ``limit`` characters."""
        value = self._members.get(name)
        if not isinstance(value, str) or not value:
            raise InvalidInput(name, "a non-empty text is required")
        return _bounded(name, value, limit)

    def any_text(self, name: str) -> str:
        """A text that may be empty, of any length that fits the frame."""
        value = self._members.get(name)
        if not isinstance(value, str):
            raise InvalidInput(name, "a text is required")
        return value

    def optional_text(self, name: str, limit: int = SHORT) -> str | None:
        """A non-empty text, or None where the member is absent or null."""
        return None if self._members.get(name) is None else self.text(name, limit)

    def word(self, name: str, words: Mapping[str, _Word]) -> _Word:
        """One of a closed set of words."""
        word = words.get(self.text(name))
        if word is None:
            raise InvalidInput(name, f"one of {', '.join(sorted(words))}")
        return word

    def optional_word(self, name: str, words: Mapping[str, _Word]) -> _Word | None:
        """One of a closed set of words, or None where the member is absent or null."""
        return None if self._members.get(name) is None else self.word(name, words)

    def integer(self, name: str, least: int = 0, most: int = SAFE_INTEGER) -> int:
        """An integer within bounds; true and false are none."""
        value = self._members.get(name)
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
            raise InvalidInput(name, f"an integer from {least} to {most} is required")
        return value

    def optional_integer(self, name: str, least: int = 0, most: int = SAFE_INTEGER) -> int | None:
        """An integer within bounds, or None where the member is absent or null."""
        return None if self._members.get(name) is None else self.integer(name, least, most)

    def number(self, name: str) -> float:
        """A finite number of seconds."""
        value = self._members.get(name)
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise InvalidInput(name, "a number is required")
        return float(value)

    def flag(self, name: str) -> bool:
        """True or false; false where the member is absent."""
        value = self._members.get(name, False)
        if not isinstance(value, bool):
            raise InvalidInput(name, "true or false is required")
        return value

    def record(self, name: str) -> JsonObject:
        """An object."""
        value = self._members.get(name)
        if not isinstance(value, dict):
            raise InvalidInput(name, "an object is required")
        return value

    def optional_record(self, name: str) -> JsonObject | None:
        """An object, or None where the member is absent or null."""
        return None if self._members.get(name) is None else self.record(name)

    def items(self, name: str, most: int) -> list[Json]:
        """An array of at most ``most`` items; empty where the member is absent."""
        value = self._members.get(name, [])
        if not isinstance(value, list) or len(value) > most:
            raise InvalidInput(name, f"an array of at most {most} items is required")
        return value

    def words(self, name: str, most: int) -> frozenset[str]:
        """A set of short texts."""
        return frozenset(
            item for item in self.items(name, most) if isinstance(item, str) and len(item) <= SHORT
        )

    def records(self, name: str, most: int) -> list[JsonObject]:
        """An array of objects."""
        records: list[JsonObject] = []
        for index, item in enumerate(self.items(name, most)):
            if not isinstance(item, dict):
                raise InvalidInput(f"{name}[{index}]", "an object is required")
            records.append(item)
        return records

    def cursor(self, name: str) -> Cursor:
        """A cursor."""
        return parse_cursor(self.text(name), name)

    def optional_cursor(self, name: str) -> Cursor | None:
        """A cursor, or None where the member is absent or null."""
        return None if self._members.get(name) is None else self.cursor(name)

    def cursors(self, name: str, most: int) -> dict[str, Cursor]:
        """Cursors by stream; empty where the member is absent or null."""
        if self._members.get(name) is None:
            return {}
        named = self.record(name)
        if len(named) > most:
            raise InvalidInput(name, f"at most {most} streams")
        return {
            stream: Fields({f"{name}.{stream[:NAME]}": text}).cursor(f"{name}.{stream[:NAME]}")
            for stream, text in named.items()
        }


def _bounded(name: str, value: str, limit: int) -> str:
    if len(value) > limit:
        raise InvalidInput(name, f"at most {limit} characters")
    return value
