"""What a new task must bring: what the configuration wants of its agent's tasks, and what its caller wants (TR-13)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from passerelle.a2a_mapping.acceptance import read_conditions
from passerelle.a2a_mapping.extensions import ACCEPTANCE
from passerelle.a2a_mapping.members import object_at

if TYPE_CHECKING:
    from collections.abc import Callable

    from passerelle.core.json import Json, JsonObject
    from passerelle.delegation.runs.peer_terms import PeerTerms


@dataclass(frozen=True, slots=True)
class Conditions:
    """The conditions of new tasks; a task keeps those that it was made with."""

    find_terms: Callable[[str], PeerTerms]

    def read_command(self, agent: str, own: tuple[JsonObject, ...]) -> tuple[JsonObject, ...]:
        """The conditions of a task that a command makes or describes anew.

        Raises:
            InvalidInput: the caller's conditions are none, or too many.
        """
        return _join(self.find_terms(agent).acceptance, [*own], "acceptance")


def read_message(wanted: tuple[JsonObject, ...], message: JsonObject) -> tuple[JsonObject, ...]:
    """The conditions of a task that ``message`` opens, at an agent whose tasks must bring what is ``wanted``.

    Raises:
        InvalidInput: the caller's conditions are none, or too many.
    """
    own = object_at(message, "metadata").get(ACCEPTANCE) if "metadata" in message else None
    return wanted if own is None else _join(wanted, own, _AT_MESSAGE)


def _join(wanted: tuple[JsonObject, ...], own: Json, at: str) -> tuple[JsonObject, ...]:
    further = [one for one in read_conditions(own, at) if one not in wanted]
    return read_conditions([*wanted, *further], at)


_AT_MESSAGE = f"message.metadata.{ACCEPTANCE}"
