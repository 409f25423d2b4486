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


@dataclass(frozen=True, slots=True)
class Conditions:
    """The conditions of new tasks; a task keeps those that it was made with."""

    find: Callable[[str], tuple[JsonObject, ...]] = lambda _agent: ()
    """What every task of an agent must bring."""

    def read_message(self, agent: str, message: JsonObject) -> tuple[JsonObject, ...]:
        """The conditions of a task that ``message`` opens.

        Raises:
            InvalidInput: the caller's conditions are none, or too many.
        """
        own = object_at(message, "metadata").get(ACCEPTANCE) if "metadata" in message else None
        return self.find(agent) if own is None else self._join(agent, own, _AT_MESSAGE)

    def read_command(self, agent: str, own: tuple[JsonObject, ...]) -> tuple[JsonObject, ...]:
        """The conditions of a task that a command makes or describes anew.

        Raises:
            InvalidInput: the caller's conditions are none, or too many.
        """
        return self._join(agent, [*own], "acceptance")

    def _join(self, agent: str, own: Json, at: str) -> tuple[JsonObject, ...]:
        wanted = self.find(agent)
        further = [one for one in read_conditions(own, at) if one not in wanted]
        return read_conditions([*wanted, *further], at)


_AT_MESSAGE = f"message.metadata.{ACCEPTANCE}"
