"""How large a message may be beside the bytes of its request: the same for every edge."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from passerelle.core.errors import InvalidInput

if TYPE_CHECKING:
    from passerelle.core.wire.json import JsonObject


@dataclass(frozen=True, slots=True)
class MessageBounds:
    """``part_bytes`` bounds the text or the base64 of one part, as it stands in the request."""

    parts: int = 1_000
    part_bytes: int = 16_777_216

    def judge(self, message: JsonObject) -> None:
        """Lets a message pass.

        Raises:
            InvalidInput: it has too many parts, or one is too large; it is named.
        """
        parts = message.get("parts")
        if not isinstance(parts, list):
            return
        if len(parts) > self.parts:
            raise InvalidInput("message.parts", f"has more than {self.parts} parts")
        for index, part in enumerate(parts):
            for name in ("text", "raw"):
                value = part.get(name) if isinstance(part, dict) else None
                # The characters first: only what could be too large is encoded.
                if (
                    isinstance(value, str)
                    and len(value) * 4 > self.part_bytes
                    and len(value.encode(errors="replace")) > self.part_bytes
                ):
                    path = f"message.parts[{index}].{name}"
                    raise InvalidInput(path, f"is larger than {self.part_bytes} bytes")
