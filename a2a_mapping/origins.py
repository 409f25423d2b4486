"""Origins of URLs: parses them, and replaces URLs of given origins in texts."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final
from urllib.parse import urlsplit

from passerelle.core.wire.json import Json

_PORTS: Final = {"http": 80, "https": 443, "ws": 80, "wss": 443}


def read_origin(url: str) -> str | None:
    """``scheme://host:port`` with the default port written out, in lower case; None for any other text."""
    try:
        parts = urlsplit(url)
        port = parts.port or _PORTS.get(parts.scheme)
    except ValueError:
        return None
    if not parts.hostname or port is None:
        return None
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    return f"{parts.scheme}://{host}:{port}"


def replace_origins(value: Json, origins: Iterable[str], base_url: str) -> Json:
    """A copy in which every URL of ``origins``, and their bare ``host:port``, is replaced by ``base_url``."""
    pattern = re.compile(
        "|".join(form for origin in sorted(origins) for form in _list_forms(origin)), re.IGNORECASE
    )
    return _replace(value, pattern, base_url) if pattern.pattern else value


def _list_forms(origin: str) -> list[str]:
    scheme, _, rest = origin.partition("://")
    host, _, port = rest.rpartition(":")
    optional = f"(?::{port})?" if _PORTS.get(scheme) == int(port) else f":{port}"
    url = (
        rf"[a-z][a-z0-9+.-]*://(?:[^\s/@]*@)?{re.escape(host)}{optional}(?![0-9.:a-z-])[^\s\"'<>)]*"
    )
    return [url, rf"(?<![a-z0-9.-]){re.escape(rest)}(?![0-9])"]


def _replace(value: Json, pattern: re.Pattern[str], base_url: str) -> Json:
    if isinstance(value, str):
        return pattern.sub(lambda _: base_url, value)
    if isinstance(value, dict):
        return {
            pattern.sub(lambda _: base_url, name): _replace(member, pattern, base_url)
            for name, member in value.items()
        }
    if isinstance(value, list):
        return [_replace(item, pattern, base_url) for item in value]
    return value
