"""A google-adk agent whose tool requires confirmation; its model is a script. ``/ran`` returns the tool's calls."""

import asyncio
import socket

import uvicorn
from google.adk.a2a.utils.agent_to_a2a import to_a2a
from google.adk.agents import LlmAgent
from google.adk.models import BaseLlm, LlmResponse
from google.adk.tools import FunctionTool
from google.genai import types
from starlette.responses import JSONResponse
from starlette.routing import Route

RAN = []


def delete_rows(table: str, count: int) -> str:
    """Deletes rows of a table."""
    RAN.append({"table": table, "count": count})
    return f"{count} rows of {table} are gone"


class Script(BaseLlm):
    """Calls the tool for a user's text, and reports its result."""

    async def generate_content_async(self, llm_request, stream=False):  # noqa: FBT002  its own signature
        parts = llm_request.contents[-1].parts or []
        results = [part.function_response.response for part in parts if part.function_response]
        if results:
            yield LlmResponse(content=types.ModelContent(f"the tool said {results[-1]}"))
            return
        text = " ".join(part.text for part in parts if part.text)
        if text == "hello":
            yield LlmResponse(content=types.ModelContent("hello to you"))
            return
        calls = [
            types.Part.from_function_call(
                name="delete_rows", args={"table": f"table-{number}", "count": 42}
            )
            for number in range(2 if "both" in text else 1)
        ]
        yield LlmResponse(content=types.ModelContent(calls))


async def main():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        tool = FunctionTool(delete_rows, require_confirmation=True)
        agent = LlmAgent(
            name="rows", description="Deletes rows.", model=Script(model="script"), tools=[tool]
        )
        app = to_a2a(agent, host="127.0.0.1", port=port)
        app.router.routes.append(Route("/ran", lambda _request: JSONResponse(RAN)))
        config = uvicorn.Config(app, log_config=None, access_log=False)
        server = uvicorn.Server(config)
        serving = asyncio.create_task(server.serve([listener]))
        while not server.started:
            await asyncio.sleep(0.01)
        print(f"ready http://127.0.0.1:{port}", flush=True)
        await serving


asyncio.run(main())
