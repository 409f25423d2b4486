"""One site for the whole run, and one caller for each test and binding."""

from collections.abc import AsyncGenerator

import pytest

from tests.conformance.callers import GRPC, HTTP_JSON, JSONRPC, Caller
from tests.conformance.site import Site, run_site
from tests.support.loops import SHARED, Backend

BINDINGS = (JSONRPC, HTTP_JSON, GRPC)


@pytest.fixture(scope="session")
def anyio_backend() -> Backend:
    """One loop for the whole run, since the site outlives the tests."""
    return SHARED


@pytest.fixture(scope="session")
async def site(
    anyio_backend: Backend, tmp_path_factory: pytest.TempPathFactory
) -> AsyncGenerator[Site]:
    async with run_site(tmp_path_factory.mktemp("site")) as made:
        yield made


@pytest.fixture(params=BINDINGS)
async def caller(request: pytest.FixtureRequest, site: Site) -> AsyncGenerator[Caller]:
    """Ada, over each binding."""
    async with site.open_caller(request.param) as opened:
        yield opened


@pytest.fixture(params=BINDINGS)
def binding(request: pytest.FixtureRequest) -> str:
    """Each binding."""
    return str(request.param)


@pytest.fixture
async def rpc(site: Site) -> AsyncGenerator[Caller]:
    """Ada, over JSON-RPC."""
    async with site.open_caller(JSONRPC) as opened:
        yield opened


@pytest.fixture
async def rest(site: Site) -> AsyncGenerator[Caller]:
    """Ada, over HTTP+JSON."""
    async with site.open_caller(HTTP_JSON) as opened:
        yield opened
