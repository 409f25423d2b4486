"""A Pydantic AI agent behind fasta2a, which implements A2A without its SDK; its model is a script.

It answers with the number of texts that it knows of the conversation, and the last one; ``fail`` makes it raise.
"""

import asyncio
import socket

import uvicorn
from fasta2a.pydantic_ai import agent_to_a2a
from pydantic_ai import Agent
from pydantic_ai.messages import ModelResponse, TextPart, UserPromptPart
from pydantic_ai.models.function import FunctionModel


def compose(messages):
    """The words of the answer."""
    prompts = [
        str(part.content)
        for message in messages
        for part in message.parts
        if isinstance(part, UserPromptPart)
    ]
    if prompts[-1] == "fail":
        message = "the model has no power"
        raise RuntimeError(message)
    return [f"text {len(prompts)}: ", *(f"{word} " for word in prompts[-1].split())]


def answer(messages, _info):
    """The whole answer."""
    return ModelResponse(parts=[TextPart("".join(compose(messages)))])


async def stream(messages, _info):
    """The answer word by word."""
    for word in compose(messages):
        yield word


async def main():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        model = FunctionModel(answer, stream_function=stream)
        app = agent_to_a2a(Agent(model), name="counting", url=url)
        config = uvicorn.Config(app, log_config=None, access_log=False)
        server = uvicorn.Server(config)
        serving = asyncio.create_task(server.serve([listener]))
        while not server.started:
            await asyncio.sleep(0.01)
        print(f"ready {url}", flush=True)
        await serving


asyncio.run(main())
