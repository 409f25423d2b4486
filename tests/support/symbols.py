"""Compares two logs by content: ids become symbols in the order of first use, times become one word."""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from typing import Final, cast

from passerelle.core.wire.json import Json

_ID: Final = re.compile(
    r"\b(?:[a-z]{2,5}_[0-3][0-9a-f][0-9a-z]{26}|msg-[0-9a-f]{32}|[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})\b"
)
_TIME: Final = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3,6}Z")


def normalize(log: Json, without: Collection[str] = ()) -> Json:
    """A log with symbols for ids and times, without the members in ``without``."""
    names: dict[str, str] = {}

    def rename(found: re.Match[str]) -> str:
        kind = found[0].replace("-", "_").split("_")[0] if "_" in found[0] else "id"
        return names.setdefault(found[0], f"{kind} {len(names)}")

    text = json.dumps(_drop(log, without))
    return cast("Json", json.loads(_TIME.sub("then", _ID.sub(rename, text))))


def _drop(value: Json, without: Collection[str]) -> Json:
    if isinstance(value, dict):
        return {name: _drop(one, without) for name, one in value.items() if name not in without}
    return [_drop(one, without) for one in value] if isinstance(value, list) else value
