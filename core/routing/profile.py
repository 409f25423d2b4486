"""The profile of a task: required capabilities, latency, budget, fallback and continuity (TR-12), and tier (MK-3).

A caller sends a profile as an object, all members optional, or as the name of its tier alone::

    {
        "tier": "specialist",
        "skills": ["translate"],
        "tags": ["eu"],
        "mediaTypes": ["text/plain"],
        "latency": "interactive",
        "budgetMicros": 20000,
        "currency": "EUR",
        "fallback": false,
        "continuity": false,
    }
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeVar, get_args

from passerelle.core.errors import InvalidInput
from passerelle.core.payloads.routing import Latency, TaskProfileResolved, TaskTier
from passerelle.core.wire.near import find_near

if TYPE_CHECKING:
    from collections.abc import Collection

    from passerelle.core.wire.json import Json, JsonObject

DEFAULT: Final = TaskProfileResolved("standard", "default")
"""The profile of a task whose caller gave none."""
MEMBERS: Final = frozenset(
    {
        "tier",
        "skills",
        "tags",
        "mediaTypes",
        "latency",
        "budgetMicros",
        "currency",
        "fallback",
        "continuity",
    }
)
TIERS: Final[tuple[TaskTier, ...]] = get_args(TaskTier)
LATENCIES: Final[tuple[Latency, ...]] = get_args(Latency)
MOST_WORDS: Final = 16
"""Skills, tags or media types in one profile."""
_LONGEST_WORD: Final = 128
_MOST_MICROS: Final = 2**53

W = TypeVar("W", bound=str)


def read_profile(value: Json, at: str) -> TaskProfileResolved:
    """Reads a profile; ``at`` is its path in the request.

    Raises:
        InvalidInput: an unknown tier, latency or member, or a wrong type; naming the field.
    """
    if isinstance(value, str):
        return TaskProfileResolved(_choose(value, TIERS, at), "caller")
    if not isinstance(value, dict):
        raise InvalidInput(at, f"must be an object, or one of {', '.join(TIERS)}")
    for name in value:
        if name not in MEMBERS:
            near = find_near(name, MEMBERS)
            raise InvalidInput(f"{at}.{name[:_LONGEST_WORD]}", _name_unknown(near))
    latency, currency = value.get("latency"), value.get("currency")
    if currency is not None and not (isinstance(currency, str) and currency):
        raise InvalidInput(f"{at}.currency", "must be a text")
    return TaskProfileResolved(
        tier=_choose(value.get("tier", DEFAULT.tier), TIERS, f"{at}.tier"),
        source="caller",
        skills=_read_words(value, "skills", at),
        tags=_read_words(value, "tags", at),
        media_types=_read_words(value, "mediaTypes", at),
        latency=None if latency is None else _choose(latency, LATENCIES, f"{at}.latency"),
        budget_micros=_read_micros(value, at),
        currency=currency,
        fallback=_read_switch(value, "fallback", at),
        continuity=_read_switch(value, "continuity", at),
    )


def _name_unknown(near: str | None) -> str:
    return f"is not known; did you mean {near!r}?" if near else "is not known"


def _choose(value: Json, words: Collection[W], at: str) -> W:
    found = next((word for word in words if word == value), None)
    if found is None:
        raise InvalidInput(at, f"must be one of {', '.join(words)}")
    return found


def _read_words(value: JsonObject, name: str, at: str) -> tuple[str, ...]:
    given = value.get(name, [])
    words = given if isinstance(given, list) else [None]
    known = tuple(
        one for one in words if isinstance(one, str) and 0 < len(one.strip()) <= _LONGEST_WORD
    )
    if len(known) != len(words) or len(words) > MOST_WORDS:
        raise InvalidInput(
            f"{at}.{name}",
            f"must be a list of at most {MOST_WORDS} texts of 1 to {_LONGEST_WORD} characters",
        )
    return tuple(dict.fromkeys(known))


def _read_micros(value: JsonObject, at: str) -> int | None:
    micros = value.get("budgetMicros")
    if micros is None:
        return None
    if isinstance(micros, bool) or not isinstance(micros, int) or not 0 <= micros <= _MOST_MICROS:
        raise InvalidInput(f"{at}.budgetMicros", "must be a whole number of millionths, 0 or more")
    return micros


def _read_switch(value: JsonObject, name: str, at: str) -> bool:
    given = value.get(name, True)
    if not isinstance(given, bool):
        raise InvalidInput(f"{at}.{name}", "must be true or false")
    return given
