"""An agent made with google-adk whose tool wants to be confirmed. It knows nothing of the gateway.

``python agent.py`` serves it at http://127.0.0.1:9001.
"""

from collections.abc import AsyncGenerator

import uvicorn
from google.adk.a2a.utils.agent_to_a2a import to_a2a
from google.adk.agents import LlmAgent
from google.adk.models import BaseLlm, LlmRequest, LlmResponse
from google.adk.tools import FunctionTool
from google.genai import types

HOST, PORT = "127.0.0.1", 9001


def restart(service: str) -> str:
    """Restarts a service."""
    return f"{service} is restarted"


class Script(BaseLlm):
    """Stands for a model, so that nothing is asked of a network: calls the tool once, then repeats its result.

    For a model of Google's write ``model="gemini-…"`` below.
    """

    async def generate_content_async(
        self,
        llm_request: LlmRequest,
        stream: bool = False,  # noqa: ARG002, FBT001, FBT002 - as ADK has it
    ) -> AsyncGenerator[LlmResponse]:
        parts = llm_request.contents[-1].parts or []
        results = [part.function_response.response for part in parts if part.function_response]
        if results:
            said = types.ModelContent(str(results[-1].get("result", "it was not allowed")))
        else:
            service = " ".join(part.text for part in parts if part.text)
            call = types.Part.from_function_call(name="restart", args={"service": service})
            said = types.ModelContent([call])
        yield LlmResponse(content=said)


agent = LlmAgent(
    name="operator",
    description="Restarts a service, after asking.",
    model=Script(model="script"),
    tools=[FunctionTool(restart, require_confirmation=True)],
)
app = to_a2a(agent, host=HOST, port=PORT)

if __name__ == "__main__":
    uvicorn.run(app, host=HOST, port=PORT)
