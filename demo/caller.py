"""A standard caller of agents: the A2A SDK's own client, without code of this project.

The bearer token is a header of the caller's own HTTP client. The SDK resolves the card and chooses the
binding from it; only the URL shows that the agent is behind a gateway. Proxies from the environment are
ignored, since everything runs on this machine.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator
from typing import Final

import httpx
from a2a.client import A2ACardResolver, Client, ClientConfig, ClientFactory
from a2a.helpers import get_artifact_text, new_text_message
from a2a.types import AgentCard, Role, SendMessageRequest, StreamResponse, Task, TaskState

TIMEOUT_S: Final = 30.0


@contextlib.asynccontextmanager
async def open_caller(
    url: str, token: str, *, streaming: bool = True
) -> AsyncGenerator[tuple[AgentCard, Client]]:
    """Opens a client for the card at ``url``; yields the card and the client."""
    headers = {"Authorization": f"Bearer {token}"}
    async with httpx.AsyncClient(headers=headers, timeout=TIMEOUT_S, trust_env=False) as http:
        card = await A2ACardResolver(http, url).get_agent_card()
        factory = ClientFactory(ClientConfig(streaming=streaming, httpx_client=http))
        async with factory.create(card) as client:
            yield card, client


def say(text: str) -> SendMessageRequest:
    """Returns a user message in a new context."""
    return SendMessageRequest(message=new_text_message(text, role=Role.ROLE_USER))


def is_completed(task: Task) -> bool:
    """Returns whether a task is completed."""
    return task.status.state == TaskState.TASK_STATE_COMPLETED


def read_artifacts(task: Task) -> list[str]:
    """Returns the text of each artifact."""
    return [get_artifact_text(artifact, delimiter="") for artifact in task.artifacts]


def read_chunk(frame: StreamResponse) -> str | None:
    """Returns the text that a frame adds to an artifact."""
    if not frame.HasField("artifact_update"):
        return None
    return get_artifact_text(frame.artifact_update.artifact, delimiter="")


def ends_well(frame: StreamResponse) -> bool:
    """Returns whether a frame reports that the task is completed."""
    return (
        frame.HasField("status_update")
        and frame.status_update.status.state == TaskState.TASK_STATE_COMPLETED
    )
