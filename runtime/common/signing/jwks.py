"""``GET /.well-known/jwks.json``: the public halves of our keys, for whoever verifies what we signed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import orjson
from starlette.responses import Response
from starlette.routing import Route

from passerelle.runtime.common.signing.signer import JWKS_PATH

if TYPE_CHECKING:
    from starlette.requests import Request

    from passerelle.runtime.common.signing.signer import Signer

MEDIA_TYPE: Final = "application/jwk-set+json"
_HEADERS: Final = {"Cache-Control": "public, max-age=300"}


def make_jwks_route(signer: Signer) -> Route:
    """The route; public, as it holds nothing that is secret."""
    body = orjson.dumps(signer.render_jwks())

    async def answer(_request: Request) -> Response:
        return Response(body, headers=_HEADERS, media_type=MEDIA_TYPE)

    return Route(JWKS_PATH, answer)
