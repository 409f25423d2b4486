"""google-adk's ``RemoteA2aAgent`` as a caller: calls the agent of a card, and prints what it received as JSON.

``client.py CARD TOKEN sse|none TEXT [yes|no]`` answers a tool that requires confirmation, as a user interface does.
"""

import asyncio
import json
import sys

import httpx
from google.adk.agents.remote_a2a_agent import RemoteA2aAgent
from google.adk.agents.run_config import RunConfig, StreamingMode
from google.adk.runners import InMemoryRunner
from google.genai import types

CONFIRMATION = "adk_request_confirmation"


async def say(runner, session, parts, mode):
    """Sends one user message; returns the received texts and function calls."""
    texts, calls = [], []
    message = types.Content(role="user", parts=parts)
    config = RunConfig(streaming_mode=mode)
    async for event in runner.run_async(
        user_id="user", session_id=session.id, new_message=message, run_config=config
    ):
        if event.error_message:
            raise RuntimeError(event.error_message)
        for part in event.content.parts or [] if event.content else []:
            if part.text and not part.thought:
                texts.append(part.text)
            if part.function_call:
                call = part.function_call
                calls.append({"id": call.id, "name": call.name, "args": call.args})
    return {"texts": texts, "calls": calls}


async def main(card, token, streaming, text, answer=None):
    mode = StreamingMode.SSE if streaming == "sse" else StreamingMode.NONE
    headers = {"Authorization": f"Bearer {token}"}
    async with httpx.AsyncClient(headers=headers, timeout=30) as http:
        agent = RemoteA2aAgent(name="remote", agent_card=card, httpx_client=http)
        runner = InMemoryRunner(agent=agent, app_name="app")
        session = await runner.session_service.create_session(app_name="app", user_id="user")
        turns = [await say(runner, session, [types.Part(text=text)], mode)]
        asked = next((one for one in turns[0]["calls"] if one["name"] == CONFIRMATION), None)
        if answer is not None and asked is not None:
            response = types.FunctionResponse(
                id=asked["id"], name=CONFIRMATION, response={"confirmed": answer == "yes"}
            )
            part = types.Part(function_response=response)
            turns.append(await say(runner, session, [part], mode))
    print(json.dumps(turns), flush=True)


asyncio.run(main(*sys.argv[1:]))
