"""The page at ``/``, and the answer at an unknown path."""

from html.parser import HTMLParser

import pytest
from httpx import ASGITransport, AsyncClient, Response

from passerelle.gateway.http.health import Readiness, make_health_routes
from passerelle.gateway.http.index import make_index_route
from passerelle.gateway.http.openapi import make_asyncapi_route, make_openapi_route
from passerelle.gateway.http.site import make_site
from passerelle.gateway.settings.model import Settings
from passerelle.runtime.common.version import VERSION
from passerelle.runtime.observability.metrics import Metrics

pytestmark = pytest.mark.anyio


class Links(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[str | None] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "a":
            self.found.append(dict(attrs)["href"])


async def probe() -> Readiness:
    return Readiness(ready=True)


async def get(path: str, accept: str = "*/*") -> Response:
    routes = [
        make_index_route(),
        make_openapi_route(),
        make_asyncapi_route(),
        *make_health_routes(probe, Metrics()),
    ]
    site = make_site(routes, Settings())
    async with AsyncClient(transport=ASGITransport(site), base_url="http://127.0.0.1") as http:
        return await http.get(path, headers={"Accept": accept})


async def test_programs_get_links_and_each_of_them_leads_somewhere() -> None:
    told = (await get("/")).json()
    assert (told["name"], told["version"]) == ("Passerelle", VERSION)
    assert set(told["links"]) == {"health", "readiness", "metrics", "openapi", "asyncapi"}
    for path in told["links"].values():
        assert (await get(path)).status_code == 200, path


async def test_a_browser_gets_a_page_with_the_same_links() -> None:
    page = await get("/", "text/html,application/xhtml+xml;q=0.9,*/*;q=0.8")
    assert page.headers["content-type"].startswith("text/html")
    assert "default-src 'none'" in page.headers["content-security-policy"]
    links = Links()
    links.feed(page.text)
    assert links.found == list((await get("/")).json()["links"].values())


async def test_an_unknown_path_points_to_the_entry_points() -> None:
    answer = await get("/v1/taskz")
    assert answer.status_code == 404
    assert answer.json()["code"] == "not_found"
    assert answer.json()["detail"] == "this path does not exist; GET / lists the entry points"


@pytest.mark.parametrize("path", ["/metrics/", "/v1/openapi.json/"])
async def test_path_with_a_slash_too_many_is_none_and_leads_nowhere(path: str) -> None:
    """A redirect would name whatever host the request does, without TLS, and the token would go there."""
    refused = await get(path)
    assert refused.status_code == 404
    assert "Location" not in refused.headers
    assert refused.json()["detail"].endswith(f"; did you mean {path[:-1]}?")
