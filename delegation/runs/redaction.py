"""What the operator's patterns match is taken out of the outputs of agents before anything is stored (EXT-10).

Redaction covers texts, names, descriptions, file names, data, metadata, members that A2A does not define, files
that are texts, and errors; not ids, nor what an answer to a question has to name. A match that is split over two
chunks of a stream is not found.
"""

from __future__ import annotations

import re
from base64 import b64decode, b64encode
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import orjson

from passerelle.a2a_mapping.dialects.named import ID_MEMBERS, find_named
from passerelle.a2a_mapping.members import text_at

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from passerelle.core.peer import RefusedByPeer
    from passerelle.core.wire.json import Json, JsonObject

_WORDS: Final = frozenset({"text", "name", "description", "filename"})
_FREE: Final = frozenset({"data", "metadata"})
"""All texts and names of members below these are redacted."""
_FIXED: Final = frozenset({
    "artifact", "artifactId", "artifactUpdate", "artifacts", "contextId", "extensions", "history", "id", "mediaType",
    "message", "messageId", "parts", "raw", "referenceTaskIds", "role", "state", "status", "statusUpdate", "task",
    "taskId", "timestamp", "url",
})  # fmt: skip
"""The members of A2A that are no words. A member that A2A does not define is redacted as one of ``_FREE``."""
_URL_SAFE: Final = str.maketrans("-_", "+/")


class Redaction:
    """Named patterns of the operator; ``is_on``: whether there are any."""

    __slots__ = ("_rules", "is_on")

    def __init__(self, rules: Iterable[tuple[str, str]]) -> None:
        self._rules = tuple(
            (name, f"[redacted: {name}]", re.compile(pattern)) for name, pattern in rules
        )
        self.is_on: Final = bool(self._rules)

    def clean(self, answer: JsonObject) -> JsonObject:
        """The answer without what the patterns match; the same object if there is no pattern.

        The ids by which a question is answered stay: without them the question could not be read, let alone answered.
        """
        if not self._rules:
            return answer
        cleaned = self._clean_all(answer, frozenset())
        named = find_named(answer) if cleaned != answer else None
        return self._clean_all(answer, named) if named else cleaned

    def clean_refusal(self, refused: RefusedByPeer) -> RefusedByPeer:
        """The error of an agent without what the patterns match in its texts."""
        if not self._rules:
            return refused
        details = tuple(
            {name: self._clean(value, name, is_free=True) for name, value in one.items()}
            for one in refused.details
        )
        return replace(refused, message=self._replace(refused.message), details=details)

    def clean_file(self, content: bytes, media_type: str) -> bytes:
        """A file without what the patterns match, if it is a text."""
        found = _read_text(content, media_type) if self._rules else None
        if found is None:
            return content
        text, encoding = found
        return self._replace(text).encode(encoding)

    def count(self, frame: JsonObject) -> list[tuple[str, int]]:
        """How often each rule has matched in a frame."""
        if not self._rules:
            return []
        return self.count_marks(b"\n".join([orjson.dumps(frame), *_list_texts(frame)]))

    def count_marks(self, content: bytes) -> list[tuple[str, int]]:
        """How often the mark of each rule occurs in a content."""
        counts = ((name, content.count(mark.encode())) for name, mark, _ in self._rules)
        return [(name, count) for name, count in counts if count]

    def _clean_all(self, answer: JsonObject, named: frozenset[str]) -> JsonObject:
        return {
            name: self._clean(value, name, is_free=False, named=named)
            for name, value in answer.items()
        }

    def _clean(
        self, value: Json, member: str, *, is_free: bool, named: frozenset[str] = frozenset()
    ) -> Json:
        free = is_free or member in _FREE or not (member in _WORDS or member in _FIXED)
        match value:
            case str():
                if member in ID_MEMBERS and value in named:
                    return value
                return self._replace(value) if free or member in _WORDS else value
            case dict():
                cleaned: JsonObject = {}
                for name, one in value.items():
                    shown = self._rename(name, value, cleaned) if free else name
                    cleaned[shown] = self._clean(one, name, is_free=free, named=named)
                if not free and (content := _read_raw(value)) is not None:
                    file = self.clean_file(content, text_at(value, "mediaType"))
                    if file != content:
                        cleaned["raw"] = b64encode(file).decode()
                return cleaned
            case list():
                return [self._clean(one, member, is_free=free, named=named) for one in value]
            case _:
                return value

    def _rename(self, name: str, value: JsonObject, cleaned: JsonObject) -> str:
        """The name of a member without what the patterns match, distinct from all others of ``value``."""
        shown = said = self._replace(name)
        count = 1
        while shown != name and (shown in value or shown in cleaned):
            count += 1
            shown = f"{said} {count}"
        return shown

    def _replace(self, text: str) -> str:
        for _, mark, pattern in self._rules:
            text = pattern.sub(mark, text)
        return text


def _read_text(content: bytes, media_type: str) -> tuple[str, str] | None:
    """The text of a file, and its encoding; None if it is no text.

    UTF-8 without a NUL is a text, whatever type it is sent with: agents and file servers name many texts
    ``application/octet-stream``. A file that is named a text may have other bytes: they are kept.
    """
    kind = media_type.strip().lower()
    is_named = kind.startswith("text/") or "json" in kind
    if is_named or b"\0" not in content:
        with suppress(UnicodeDecodeError):
            return content.decode(), "utf-8"
    return (content.decode("latin-1"), "latin-1") if is_named else None


def _read_raw(part: JsonObject) -> bytes | None:
    """The file in a part, in any form of base64 that ProtoJSON allows; None if the part has none."""
    raw = part.get("raw")
    if not isinstance(raw, str):
        return None
    plain = "".join(raw.split()).translate(_URL_SAFE)
    try:
        return b64decode(plain + "=" * (-len(plain) % 4), validate=True)
    except ValueError:
        return None


def _list_texts(value: Json) -> Iterator[bytes]:
    match value:
        case dict():
            if (content := _read_raw(value)) is not None:
                yield content
            for one in value.values():
                yield from _list_texts(one)
        case list():
            for one in value:
                yield from _list_texts(one)
        case _:
            return


NO_REDACTION: Final = Redaction(())
