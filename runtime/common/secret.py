"""A value that must not be shown: its text, its repr and its JSON are ``***``."""

from __future__ import annotations

import hmac
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pydantic import GetCoreSchemaHandler
    from pydantic_core import CoreSchema

MASK: Final = "***"


class Secret:
    """Holds a text; only ``get_secret_value`` returns it, so that each use can be found by its name."""

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        self._value = value

    def get_secret_value(self) -> str:
        """The text itself."""
        return self._value

    def __str__(self) -> str:
        return MASK

    def __repr__(self) -> str:
        return f"Secret('{MASK}')"

    def __format__(self, spec: str) -> str:
        return format(MASK, spec)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Secret):
            return NotImplemented
        return hmac.compare_digest(self._value.encode(), other._value.encode())

    def __hash__(self) -> int:
        return hash((Secret, self._value))

    def __reduce__(self) -> str:
        raise TypeError("a secret is not pickled")

    @classmethod
    def __get_pydantic_core_schema__(
        cls, _source: object, _handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        from pydantic_core import core_schema  # noqa: PLC0415  only pydantic asks for it

        text = core_schema.no_info_after_validator_function(
            cls, core_schema.str_schema(min_length=1)
        )
        return core_schema.json_or_python_schema(
            json_schema=text,
            python_schema=core_schema.union_schema(
                [core_schema.is_instance_schema(cls), text], mode="left_to_right"
            ),
            serialization=core_schema.to_string_ser_schema(),
        )
