"""``GET /v1/asyncapi.json``: the channel's frames as AsyncAPI."""

from __future__ import annotations

from typing import Final

import orjson
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from passerelle.channels.asyncapi import render_asyncapi
from passerelle.runtime.common.version import VERSION

PATH: Final = "/v1/asyncapi.json"


def make_asyncapi_route() -> Route:
    """Public, as it holds nothing of anybody."""

    async def answer(_request: Request) -> Response:
        return Response(orjson.dumps(render_asyncapi(VERSION)), media_type="application/json")

    return Route(PATH, answer)
