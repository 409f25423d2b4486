"""Calls an agent with the a2a-sdk, and prints its stream: ``python call_sdk.py AGENT TEXT``."""

import asyncio
import os
import sys

import httpx
from a2a.client import A2ACardResolver, ClientConfig, create_client
from a2a.helpers import get_artifact_text, new_text_message
from a2a.types import Role, SendMessageRequest, TaskState

URL = os.environ.get("PASSERELLE_URL", "http://127.0.0.1:8080")


async def main(agent: str, text: str) -> None:
    headers = {"Authorization": f"Bearer {os.environ['PASSERELLE_TOKEN']}"}
    async with httpx.AsyncClient(headers=headers, timeout=60) as http:
        card = await A2ACardResolver(http, f"{URL}/agents/{agent}").get_agent_card()
        client = await create_client(card, ClientConfig(httpx_client=http))
        request = SendMessageRequest(message=new_text_message(text, role=Role.ROLE_USER))
        async for event in client.send_message(request):
            if event.HasField("artifact_update"):
                print(
                    get_artifact_text(event.artifact_update.artifact, delimiter=""),
                    end="",
                    flush=True,
                )
            elif event.HasField("status_update"):
                print(TaskState.Name(event.status_update.status.state), flush=True)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
