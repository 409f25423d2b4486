"""Patterns that nobody wants to keep, taken out of the words of agents before anything is stored (EXT-10).

Words are texts, names, descriptions, file names, data and metadata. Bytes are not looked into, nor are ids. What is
split over two chunks of a stream is two texts, and a pattern is found in neither.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import orjson

if TYPE_CHECKING:
    from collections.abc import Iterable

    from passerelle.core.json import Json, JsonObject

_WORDS: Final = frozenset({"text", "name", "description", "filename"})
_FREE: Final = frozenset({"data", "metadata"})
"""Everything below these is somebody's words."""


class Redaction:
    """Named patterns, as the operator wrote them; ``is_on``: whether there are any."""

    __slots__ = ("_rules", "is_on")

    def __init__(self, rules: Iterable[tuple[str, str]]) -> None:
        self._rules = tuple(
            (name, f"[redacted: {name}]", re.compile(pattern)) for name, pattern in rules
        )
        self.is_on: Final = bool(self._rules)

    def clean(self, answer: JsonObject) -> JsonObject:
        """The same answer without what the patterns match; the same object where there is no pattern."""
        if not self._rules:
            return answer
        return {name: self._clean(value, name, is_free=False) for name, value in answer.items()}

    def clean_file(self, content: bytes, media_type: str) -> bytes:
        """A file without what the patterns match, if it is a text."""
        kind = media_type.strip().lower()
        if not self._rules or not (kind.startswith("text/") or "json" in kind):
            return content
        try:
            return self._replace(content.decode()).encode()
        except UnicodeDecodeError:
            return content

    def count(self, frame: JsonObject) -> list[tuple[str, int]]:
        """How often each rule has struck in what is shown."""
        if not self._rules:
            return []
        return self.count_marks(orjson.dumps(frame))

    def count_marks(self, content: bytes) -> list[tuple[str, int]]:
        """How often the mark of each rule stands in a content."""
        counts = ((name, content.count(mark.encode())) for name, mark, _ in self._rules)
        return [(name, count) for name, count in counts if count]

    def _clean(self, value: Json, member: str, *, is_free: bool) -> Json:
        match value:
            case str():
                return self._replace(value) if is_free or member in _WORDS else value
            case dict():
                free = is_free or member in _FREE
                return {name: self._clean(one, name, is_free=free) for name, one in value.items()}
            case list():
                free = is_free or member in _FREE
                return [self._clean(one, member, is_free=free) for one in value]
            case _:
                return value

    def _replace(self, text: str) -> str:
        for _, mark, pattern in self._rules:
            text = pattern.sub(mark, text)
        return text


NO_REDACTION: Final = Redaction(())
