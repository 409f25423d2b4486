"""Serves the page at http://127.0.0.1:8090, and gets it tickets: the gateway's token never reaches a browser."""

import os
from pathlib import Path

import httpx
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

HERE = Path(__file__).parent
CLIENT = Path(os.environ.get("CLIENT_JS", HERE.parents[1] / "clients" / "js" / "src"))
GATEWAY = "http://127.0.0.1:8080"
HOST, PORT = "127.0.0.1", 8090
ORIGIN = f"http://{HOST}:{PORT}"


async def give_page(_: Request) -> FileResponse:
    return FileResponse(HERE / "index.html")


async def give_settings(_: Request) -> JSONResponse:
    return JSONResponse({"gateway": GATEWAY})


async def give_ticket(request: Request) -> JSONResponse:
    """Here is where a page of yours asks who its user is, and takes the key of that user."""
    if request.headers.get("origin") != ORIGIN:
        return JSONResponse({"error": "this is for our own page"}, 403)
    # A ticket holds for 30 seconds, once, and only for the origin and the device that it is asked for.
    headers = {"Authorization": f"Bearer {os.environ['PASSERELLE_TOKEN']}", "Origin": ORIGIN}
    async with httpx.AsyncClient() as http:
        answer = await http.post(f"{GATEWAY}/v1/tickets", headers=headers, json={"device": "page"})
    return JSONResponse(answer.json(), answer.status_code)


app = Starlette(
    routes=[
        Route("/", give_page),
        Route("/settings", give_settings),
        Route("/ticket", give_ticket, methods=["POST"]),
        Mount("/client", StaticFiles(directory=CLIENT)),
    ]
)

if __name__ == "__main__":
    uvicorn.run(app, host=HOST, port=PORT)
