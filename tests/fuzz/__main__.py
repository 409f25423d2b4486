"""``make fuzz``: hostile requests on every edge of a real gateway, and hostile connections to another one.

``SEED=n`` repeats a plan, ``SHORT=1`` sends 500 requests instead of 10,000 and opens fewer connections. The run
passes when no answer is a 500, reveals an internal detail or has the wrong form, and afterwards the gateway is
healthy, has counted no internal error, and has as many files, loop tasks and running tasks of callers as before.
``connections`` defines the checks of connections.
"""

from __future__ import annotations

import argparse
import asyncio
import secrets
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar, cast

import grpc
import httpx
import hypothesis
import schemathesis
from hypothesis import strategies as st

from tests.conformance.site import KEYS, Site, run_site
from tests.fuzz import connections
from tests.fuzz.connections import Outcome
from tests.fuzz.oracle import find_faults
from tests.fuzz.remains import Remains
from tests.fuzz.shots import Shot, http_shots, other_shots, rpc_shots

T = TypeVar("T")

SHORT: Final = 500
LONG: Final = 10_500
"""More than 10,000 of these can be written as requests."""
_QUIET: Final = (
    hypothesis.HealthCheck.too_slow,
    hypothesis.HealthCheck.data_too_large,
    hypothesis.HealthCheck.filter_too_much,
    hypothesis.HealthCheck.large_base_example,
)
_READ_S: Final = 3.0
_MOST_BYTES: Final = 65_536
_METHODS: Final = ("SendMessage", "GetTask", "ListTasks", "CancelTask", "GetExtendedAgentCard")
_BAD_CODES: Final = {grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN}


@dataclass(slots=True)
class _Partial:
    """The received part of an answer."""

    status: int = 0
    media_type: str = ""
    body: bytes = b""

    @property
    def is_stream(self) -> bool:
        """Whether it may continue without a limit."""
        return self.media_type.startswith("text/event-stream")


class Range:
    """The gateway under test, and the results."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self.fired: Counter[str] = Counter()
        self.faults: list[str] = []
        headers = {"Authorization": f"Bearer {KEYS['ada']}"}
        self.http = httpx.Client(
            base_url=site.gateway.url, headers=headers, timeout=_READ_S, trust_env=False
        )
        self.owner = httpx.Client(
            base_url=site.gateway.url,
            headers=site.gateway.authorization,
            timeout=10,
            trust_env=False,
        )

    def fire(self, shot: Shot) -> None:
        """Sends one request and checks its answer. A stream is read for a moment and closed."""
        self.fired[shot.edge] += 1
        try:
            request = self.http.build_request(
                shot.method, shot.path, content=shot.body, headers=shot.headers
            )
        except (httpx.InvalidURL, ValueError):
            # It cannot be written as a request, so no client could send it.
            return
        received = _Partial()
        try:
            self._read(request, received)
        except httpx.TimeoutException:
            if not received.is_stream:
                self.complain(shot, "no whole answer in time")
        except (httpx.WriteError, httpx.ReadError):
            # A body that is refused for its size may be cut while it is sent.
            return
        except httpx.HTTPError as error:
            self.complain(shot, repr(error))
            return
        if received.body or not received.is_stream:
            for fault in find_faults(
                shot.edge, received.status, received.media_type, received.body
            ):
                self.complain(shot, f"{received.status}: {fault}: {received.body[:200]!r}")

    def _read(self, request: httpx.Request, received: _Partial) -> None:
        response = self.http.send(request, stream=True)
        received.status = response.status_code
        received.media_type = response.headers.get("content-type", "")
        try:
            for piece in response.iter_bytes():
                received.body += piece
                if len(received.body) > _MOST_BYTES:
                    return
        finally:
            response.close()

    def fire_grpc(self, channel: grpc.Channel, method: str, body: bytes, version: str) -> None:
        """One call with arbitrary bytes as its message."""
        self.fired["grpc"] += 1
        call: Callable[..., bytes] = cast(
            "Any", channel.unary_unary(f"/lf.a2a.v1.A2AService/{method}")
        )
        metadata = (("authorization", f"Bearer {KEYS['ada']}"), ("a2a-version", version))
        try:
            call(body, metadata=metadata, timeout=_READ_S)
        except grpc.RpcError as error:
            code = error.code()
            if code in _BAD_CODES and "INVALID_AGENT_RESPONSE" not in repr(error):
                self.faults.append(f"grpc {method} {body[:80]!r}: {code.name}")

    def complain(self, shot: Shot, fault: str) -> None:
        """Records a fault with the request that caused it."""
        self.faults.append(f"{shot.method} {shot.path[:120]} {shot.body[:160]!r} → {fault}")

    def close(self) -> None:
        """Closes the clients."""
        self.http.close()
        self.owner.close()

    # ------------------------------------------------------------ leftovers

    def find_unended(self) -> Iterator[str]:
        """Tasks of callers that still run."""
        for state in ("TASK_STATE_SUBMITTED", "TASK_STATE_WORKING"):
            asked = {"status": state, "A2A-Version": "1.0"}
            page = self.http.get("/agents/conformance/tasks", params=asked).json()
            if page.get("totalSize"):
                yield f"{page['totalSize']} tasks are still {state}"


def shoot(seed: int, count: int, strategy: st.SearchStrategy[T], fire: Callable[[T], None]) -> None:
    """Draws that many examples and sends each."""

    @hypothesis.seed(seed)
    @hypothesis.settings(
        max_examples=count,
        database=None,
        deadline=None,
        derandomize=False,
        phases=[hypothesis.Phase.generate],
        suppress_health_check=_QUIET,
    )
    @hypothesis.given(strategy)
    def run(example: T) -> None:
        fire(example)

    run()


def run_all(site: Site, seed: int, count: int) -> Range:
    """Sends to every edge its share of requests."""
    range_ = Range(site)
    range_.fire(Shot("http", "GET", "/agents/conformance/tasks?A2A-Version=1.0"))
    remains = Remains(range_.owner)
    before = remains.measure()
    for share, strategy in ((0.35, rpc_shots()), (0.3, http_shots()), (0.15, other_shots())):
        shoot(seed, int(count * share), strategy, range_.fire)
    _shoot_openapi(range_, seed, int(count * 0.12))
    with grpc.insecure_channel(site.grpc_address) as channel:

        def call(one: tuple[str, bytes, str]) -> None:
            range_.fire_grpc(channel, *one)

        versions = st.sampled_from(["1.0", "", "9"])
        calls = st.tuples(st.sampled_from(_METHODS), st.binary(max_size=120), versions)
        shoot(seed, int(count * 0.08), calls, call)
    range_.faults += remains.find_left_behind(before, range_.find_unended)
    return range_


def _shoot_openapi(range_: Range, seed: int, count: int) -> None:
    """Requests that schemathesis generates from the OpenAPI document, valid and invalid, as the owner."""
    url = range_.site.gateway.url
    schema = schemathesis.openapi.from_dict(range_.owner.get("/v1/openapi.json").json())
    found: list[Any] = [one.ok() for one in cast("Any", schema).get_all_operations()]
    modes = (schemathesis.GenerationMode.POSITIVE, schemathesis.GenerationMode.NEGATIVE)
    share = max(1, count // (len(found) * len(modes)))

    def fire(case: Any) -> None:  # noqa: ANN401
        sent = case.as_transport_kwargs(base_url=url)
        headers = {name: str(value) for name, value in dict(sent.get("headers") or {}).items()}
        headers.update(range_.site.gateway.authorization)
        try:
            request = httpx.Request(
                sent["method"],
                sent["url"],
                params=sent.get("params"),
                headers={n: v.encode("utf-8", "surrogatepass") for n, v in headers.items()},
                json=sent.get("json"),
                content=sent.get("data"),
            )
        except (httpx.InvalidURL, UnicodeEncodeError, ValueError, TypeError):
            return
        path = str(request.url).removeprefix(url)
        known = {n: v for n, v in request.headers.items() if n not in {"host", "content-length"}}
        range_.fire(Shot("v1", request.method, path, request.read(), known))

    for operation in found:
        for mode in modes:
            shoot(seed, share, operation.as_strategy(generation_mode=mode), fire)


async def run(seed: int, *, short: bool) -> tuple[Range, Outcome]:
    """Runs one gateway for requests, and one for connections."""
    with tempfile.TemporaryDirectory(prefix="psr-fuzz-") as name:
        folders = [Path(name, part) for part in ("requests", "connections")]
        for folder in folders:
            folder.mkdir()
        async with asyncio.TaskGroup() as group:
            shots = group.create_task(_shoot_all(folders[0], seed, SHORT if short else LONG))
            plan = connections.SHORT if short else connections.LONG
            opened = group.create_task(connections.play(folders[1], seed, plan))
        return shots.result(), opened.result()


async def _shoot_all(folder: Path, seed: int, count: int) -> Range:
    async with run_site(folder) as site:
        return await asyncio.to_thread(run_all, site, seed, count)


def main() -> int:
    """Prints the seed first, and one line at the end."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--short", action="store_true")
    flags = parser.parse_args()
    seed = secrets.randbelow(2**32) if flags.seed is None else flags.seed
    print(f"fuzz: seed {seed}", flush=True)
    range_, opened = asyncio.run(run(seed, short=flags.short))
    range_.close()
    faults = list(dict.fromkeys(range_.faults + opened.faults))
    for fault in faults[:20]:
        print(fault)
    verdict = f"{len(faults)} faults" if faults else "held"
    print(
        f"fuzz: {range_.fired.total()} requests ({_list(range_.fired)}),"
        f" {opened.opened.total()} connections ({_list(opened.opened)}),"
        f" {opened.background.answered} other calls, the slowest {opened.background.slowest_s:.1f} s,"
        f" seed {seed}: {verdict}"
    )
    return 1 if faults else 0


def _list(counts: Counter[str]) -> str:
    return ", ".join(f"{name} {number}" for name, number in sorted(counts.items()))


if __name__ == "__main__":
    raise SystemExit(main())
