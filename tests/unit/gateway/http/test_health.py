"""Health, readiness and metrics, as a probe and a scraper see them."""

import pytest
from httpx import ASGITransport, AsyncClient, Response

from passerelle.core.errors import StoreUnavailable
from passerelle.gateway.http.health import Probe, Readiness, make_health_routes
from passerelle.gateway.http.site import make_site
from passerelle.gateway.settings.model import Settings
from passerelle.runtime.common.version import VERSION
from passerelle.runtime.observability.metrics import Metrics
from tests.support.open_metrics import read_families

_PROMETHEUS = (
    "application/openmetrics-text;version=1.0.0;q=0.6,text/plain;version=0.0.4;q=0.5,*/*;q=0.1"
)
"""What a Prometheus server asks for."""


async def probe_well() -> Readiness:
    return Readiness(ready=True)


async def probe_starting() -> Readiness:
    return Readiness(ready=False, reason="the engine is loading")


async def probe_failing() -> Readiness:
    raise StoreUnavailable("no space left", "no")


async def get(
    path: str, probe: Probe = probe_well, metrics: Metrics | None = None, accept: str = "*/*"
) -> Response:
    site = make_site(make_health_routes(probe, metrics or Metrics()), Settings())
    async with AsyncClient(transport=ASGITransport(site), base_url="http://127.0.0.1") as http:
        return await http.get(path, headers={"Accept": accept})


@pytest.mark.anyio
async def test_process_that_lives_is_healthy_even_when_it_cannot_work() -> None:
    response = await get("/healthz", probe_failing)
    assert (response.status_code, response.json()) == (200, {"status": "ok", "version": VERSION})


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("probe", "reason"),
    [
        (probe_starting, "the engine is loading"),
        (probe_failing, "the store is not available (no space left)"),
    ],
)
async def test_gateway_that_cannot_write_is_not_ready_with_a_reason(
    probe: Probe, reason: str
) -> None:
    response = await get("/readyz", probe)
    assert (response.status_code, response.json()["reason"]) == (503, reason)
    assert response.headers["Retry-After"] == "1"


@pytest.mark.anyio
async def test_gateway_that_can_write_is_ready() -> None:
    assert (await get("/readyz")).status_code == 200


@pytest.mark.anyio
async def test_metrics_have_what_was_counted() -> None:
    metrics = Metrics()
    metrics.count_request("echo", "SendMessage", "ok", 0.002)
    response = await get("/metrics", metrics=metrics)
    assert response.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
    lines = response.text.splitlines()
    wanted = 'passerelle_requests_total{agent="echo",operation="SendMessage",outcome="ok"} 1.0'
    assert wanted in lines
    assert f'passerelle_build_info{{version="{VERSION}"}} 1.0' in lines


@pytest.mark.anyio
@pytest.mark.requirement("PRS-11")
async def test_open_metrics_lead_from_a_time_to_the_trace_of_a_request() -> None:
    metrics = Metrics()
    metrics.count_request("echo", "SendMessage", "ok", 0.002)
    metrics.count_request("echo", "SendMessage", "ok", 0.002, "a" * 32)
    metrics.count_request("echo", "SendMessage", "ok", 7.0, "b" * 32)
    response = await get("/metrics", metrics=metrics, accept=_PROMETHEUS)
    assert response.headers["Content-Type"].startswith("application/openmetrics-text; version=1.0")
    families = read_families(response.text)
    shown = {
        float(one.labels["le"]): (one.exemplar.labels["trace_id"], one.exemplar.value)
        for one in families["passerelle_request_seconds"].samples
        if one.exemplar is not None
    }
    assert sorted(shown.values()) == [("a" * 32, 0.002), ("b" * 32, 7.0)]
    assert all(value <= bound for bound, (_, value) in shown.items())
    assert "trace_id" not in (await get("/metrics", metrics=metrics)).text


def test_registries_of_two_gateways_do_not_mix() -> None:
    one, other = Metrics(), Metrics()
    one.runtime_errors.labels("worker").inc()
    assert b'passerelle_runtime_errors_total{where="worker"}' not in other.render()
