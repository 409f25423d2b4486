"""Durations as people write them in a configuration: ``250ms``, ``10s``, ``2m``, ``1h30m``."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from pydantic import GetCoreSchemaHandler
    from pydantic_core import CoreSchema

UNITS_MS: Final = {"d": 86_400_000, "h": 3_600_000, "m": 60_000, "s": 1_000, "ms": 1}
PATTERN: Final = r"^(\d+(d|h|ms|m|s))+$"
_TERM: Final = re.compile(r"(\d+)(d|h|ms|m|s)")
_WHOLE: Final = re.compile(PATTERN, re.ASCII)
LONGEST_MS: Final = 366 * UNITS_MS["d"]


@dataclass(frozen=True, slots=True, order=True)
class Duration:
    """A length of time; its text is the shortest form that ``parse_duration`` reads back."""

    ms: int

    @property
    def seconds(self) -> float:
        """The duration in seconds."""
        return self.ms / 1000

    def __str__(self) -> str:
        rest, words = self.ms, ""
        for unit, size_ms in UNITS_MS.items():
            count, rest = divmod(rest, size_ms)
            words += f"{count}{unit}" if count else ""
        return words or "0s"

    @classmethod
    def __get_pydantic_core_schema__(
        cls, _source: object, _handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        from pydantic_core import core_schema  # noqa: PLC0415  only pydantic asks for it

        text = core_schema.no_info_after_validator_function(
            parse_duration, core_schema.str_schema(pattern=PATTERN)
        )
        return core_schema.json_or_python_schema(
            json_schema=text,
            python_schema=core_schema.no_info_plain_validator_function(_read),
            serialization=core_schema.to_string_ser_schema(),
        )


def parse_duration(text: str, longest_ms: int = LONGEST_MS) -> Duration:
    """Reads one or more whole numbers, each with a unit (d, h, m, s, ms).

    Raises:
        ValueError: there is no unit, an unknown one, a unit twice or out of order, or more than ``longest_ms``.
    """
    if not _WHOLE.fullmatch(text):
        raise ValueError(
            "is a duration: whole numbers with a unit, such as 250ms, 10s, 2m or 1h30m"
        )
    terms = _TERM.findall(text)
    order = [list(UNITS_MS).index(unit) for _, unit in terms]
    if order != sorted(set(order)):
        raise ValueError("names each unit once, the largest first, such as 1h30m")
    total_ms = sum(int(count) * UNITS_MS[unit] for count, unit in terms)
    if total_ms > longest_ms:
        raise ValueError(f"is at most {Duration(longest_ms)}")
    return Duration(total_ms)


def _read(value: Any) -> Duration:  # noqa: ANN401  any value in the file
    if isinstance(value, Duration):
        return value
    if not isinstance(value, str):
        raise ValueError("is a duration with a unit, such as 250ms, 10s, 2m or 1h30m")  # noqa: TRY004  pydantic collects ValueError
    return parse_duration(value)
