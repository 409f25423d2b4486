"""Size limits of a message besides the byte limit of its request: equal for every edge."""

from __future__ import annotations

from typing import TYPE_CHECKING

from passerelle.core.errors import InvalidInput
from passerelle.core.frozen import frozen

if TYPE_CHECKING:
    from passerelle.core.wire.json import JsonObject


@frozen
class MessageBounds:
    """``part_bytes`` limits the text or the base64 of one part, as sent in the request."""

    parts: int = 1_000
    part_bytes: int = 16_777_216

    def judge(self, message: JsonObject) -> None:
        """Checks a message.

        Raises:
            InvalidInput: too many parts, or a part that is too large; naming it.
        """
        parts = message.get("parts")
        if not isinstance(parts, list):
            return
        if len(parts) > self.parts:
            raise InvalidInput("message.parts", f"has more than {self.parts} parts")
        for index, part in enumerate(parts):
            for name in ("text", "raw"):
                value = part.get(name) if isinstance(part, dict) else None
                # Characters first: only what could be too large is encoded.
                if (
                    isinstance(value, str)
                    and len(value) * 4 > self.part_bytes
                    and len(value.encode(errors="replace")) > self.part_bytes
                ):
                    path = f"message.parts[{index}].{name}"
                    raise InvalidInput(path, f"is larger than {self.part_bytes} bytes")
