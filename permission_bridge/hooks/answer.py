"""What a hook answers, and what of it counts."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from passerelle.core.payloads.approval import Risk
from passerelle.core.wire.json import JsonObject
from passerelle.core.wire.record import record


@record
class HookAnswer:
    """The verdict of a hook; an empty object is silence.

    ``message`` is another message in place of the one that the hook was given, where the point lets it be changed;
    ``risk`` is a classifier's opinion.
    """

    verdict: Literal["silent", "allow", "ask", "deny"] = "silent"
    reason: Annotated[str, Field(max_length=500)] | None = None
    message: JsonObject | None = None
    risk: Risk | None = None
