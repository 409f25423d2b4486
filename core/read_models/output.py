"""Content that a fact names by reference, as its readers get it (ENV-10)."""

from __future__ import annotations

from typing import Literal

from passerelle.core.record import record


@record
class OutputContent:
    """A part of it, in base64, from ``offset`` on; ``size`` is that of the whole. What has expired has no content."""

    sha256: str
    state: Literal["here", "expired"]
    name: str
    """What the fact calls it: ``artifact``, ``output``, ``frame``, ``input``, or ``copy.`` and a number."""
    offset: int
    content: str | None = None
    size: int | None = None
    media_type: str | None = None
    preview: str | None = None
    url: str | None = None
    """Where a copy was taken from."""
