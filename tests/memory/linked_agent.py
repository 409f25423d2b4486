"""The agent over a link that it opens itself: ``python -m tests.memory.linked_agent <channel URL> <agent URL>``.

The credential is in the environment. Each call on the link goes to the agent over HTTP; its bytes are passed on as
they come.
"""

from __future__ import annotations

import asyncio
import os
import sys
from typing import TYPE_CHECKING, Final

import aiohttp

from passerelle.client.agent import ReverseAgent

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from passerelle.client.asgi_app import App, Message

NAME: Final = "linked"
TOKEN: Final = "MEMORY_LINK_TOKEN"
_CALLS: Final = 32


def make_app(http: aiohttp.ClientSession, agent_url: str) -> App:
    """An application that passes each request on to the agent."""

    async def app(
        scope: Message,
        receive: Callable[[], Awaitable[Message]],
        send: Callable[[Message], Awaitable[None]],
    ) -> None:
        if scope["type"] != "http":
            raise NotImplementedError(scope["type"])
        body = (await receive())["body"]
        url = f"{agent_url}{scope['path']}"
        async with http.request(scope["method"], url, data=body or None) as answer:
            headers = [(b"content-type", answer.content_type.encode())]
            await send({"type": "http.response.start", "status": answer.status, "headers": headers})
            async for piece in answer.content.iter_any():
                await send({"type": "http.response.body", "body": piece, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})

    return app


async def run(channel_url: str, agent_url: str) -> None:
    """Serves until it is ended; the first line of its output says that the gateway serves it."""
    timeout = aiohttp.ClientTimeout(total=None)
    async with aiohttp.ClientSession(timeout=timeout) as http:
        app, token = make_app(http, agent_url), os.environ[TOKEN]
        async with ReverseAgent(
            channel_url, name=NAME, handler=app, token=token, path="/", most=_CALLS
        ) as link:
            await link.wait_served()
            print("linked", flush=True)
            await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(run(*sys.argv[1:]))
