"""Draws the synchronous client of ``/v1`` from the asynchronous one: the same calls, without ``await``."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Final

_ROOT: Final = Path(__file__).resolve().parent.parent
_SOURCE: Final = _ROOT / "clients" / "python" / "passerelle_client" / "api_async.py"
_HEAD: Final = '"""The synchronous client of ``/v1``, drawn from ``api_async.py``."""\n'
_CHANGES: Final = (
    (r'\A""".*?"""\n', _HEAD),
    (r"^import asyncio\n", ""),
    (r"\basync (?=def\b)", ""),
    (r"\bawait asyncio\.sleep\b", "time.sleep"),
    (r"\bawait ", ""),
    (r"\bAsyncIterator\b", "Iterator"),
    (r"\bAsyncClient\b", "Client"),
    (r"\bApiClient\b", "SyncApiClient"),
    (r"\b__aenter__\b", "__enter__"),
    (r"\b__aexit__\b", "__exit__"),
    (r"\baclose\b", "close"),
    (r"\ban async context manager\b", "a context manager"),
    (r"for (\w+) in ([\w.]+):\n\s+yield \1\n", r"yield from \2\n"),
)
_LEFT: Final = re.compile(r"\basync(?:io)?\b|\bAsync\w+|\bawait\b")


def render_sync_client() -> str:
    """The source of ``api_sync.py``.

    Raises:
        ValueError: something of the asynchronous client has no synchronous form here.
    """
    drawn = _SOURCE.read_text(encoding="utf-8")
    for pattern, replacement in _CHANGES:
        drawn = re.sub(pattern, replacement, drawn, flags=re.MULTILINE | re.DOTALL)
    if (left := _LEFT.search(drawn)) is not None:
        message = f"{_SOURCE.name}: {left.group()!r} has no synchronous form"
        raise ValueError(message)
    words = (sys.executable, "-m", "ruff", "format", "--stdin-filename", "api_sync.py", "-")
    done = subprocess.run(words, input=drawn, capture_output=True, check=True, text=True, cwd=_ROOT)
    return done.stdout
