"""What peers that dial in are made of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from passerelle.core.ports.agents import Agents
    from passerelle.peers.reverse.local import LocalLinks


@dataclass(frozen=True, slots=True)
class Dialling:
    """What all instances know of such agents, and the sockets of this one."""

    agents: Agents
    links: LocalLinks
