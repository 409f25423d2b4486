"""``passerelle agents``: asks a gateway that runs for the agents that one may use."""

from __future__ import annotations

from typing import TYPE_CHECKING

from passerelle.a2a_mapping.members import objects_at, text_at, texts_at
from passerelle.gateway.http.v1 import AGENTS_PATH

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from passerelle.core.json import JsonObject
    from passerelle.gateway.control_client import ControlClient


def fetch_agents(client: ControlClient, filters: Mapping[str, str | None]) -> list[JsonObject]:
    """The agents that match ``filters``, as ``GET /v1/agents`` lists them."""
    params = {name: value for name, value in filters.items() if value is not None}
    return objects_at(client.get(AGENTS_PATH, params), "agents")


def render_agents(agents: list[JsonObject]) -> Iterator[str]:
    """One line for each agent, and one for each of its skills."""
    for agent in agents:
        yield f"{text_at(agent, 'name')}  {text_at(agent, 'status')}  {text_at(agent, 'url')}"
        for skill in objects_at(agent, "skills"):
            tags = ", ".join(texts_at(skill, "tags"))
            yield f"  {text_at(skill, 'id')}: {text_at(skill, 'name')}{f' [{tags}]' if tags else ''}"
    count = len(agents)
    yield f"agents: {count}"
