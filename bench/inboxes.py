"""A long inbox: the cost of a device's welcome with thousands of open approvals, next to a hundred.

This process stores the approvals as the gateway does, and the gateway's relay copies them to the inboxes. They have
no due rows, so no notification is sent while welcomes are measured.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Final

import orjson
import yaml
from websockets.asyncio.client import connect
from websockets.typing import Subprotocol

from bench.engines import open_bench
from bench.rows import Bound, MeasurementError, Row, Spread
from bench.usage import read_cpu_s
from passerelle.core.approval import machine as approval
from passerelle.core.approval.commands import OpenAction
from passerelle.core.batch import EntityKind, EntityRef
from passerelle.core.facts import Scope
from passerelle.core.ids import ALL_SHARDS
from passerelle.core.payloads.approval import ApprovalRequest, Option, Origin
from passerelle.core.principal import Principal
from passerelle.demo.checks import wait_for
from passerelle.demo.processes import GatewayProcess
from passerelle.gateway.auth.keys import hash_key
from passerelle.protocol.frames import SUBPROTOCOL
from passerelle.runtime.common.clock import SystemClock, SystemIds
from passerelle.runtime.common.secret import Secret
from passerelle.runtime.records.writes import AppendOptions, Writes, Written
from passerelle.store.store import Store

_PEOPLE: Final = ("few", "many")
_FEW: Final = 100
_PAGE: Final = 100
_AT_ONCE: Final = 16
_DAY_MS: Final = 86_400_000
_WITHIN_S: Final = 60.0
_MOST: Final = Bound("at most", 1.5)


async def measure_inboxes(many: int, rounds: int, welcomes: int) -> AsyncGenerator[Row]:
    """Gateway CPU for a welcome with ``many`` open approvals of one person, relative to a hundred."""
    async with open_bench() as bench:
        with tempfile.TemporaryDirectory(prefix="psr-bench-") as name:
            gateway = _make_gateway(Path(name), str(bench.endpoint.kwargs["path"]))
            try:
                await gateway.start()
                for who, count in zip(_PEOPLE, (_FEW, many), strict=True):
                    await _fill(bench.store, Principal(who), count)
                    await _await_inbox(bench.store, Principal(who), count)
                spent = [
                    {who: await welcome(gateway, f"{who}-key", welcomes) for who in _PEOPLE}
                    for _ in range(rounds + 1)
                ][1:]
            finally:
                await gateway.stop()
    ratios = [one["many"] / one["few"] for one in spent]
    what = f"welcome at {many // 1000} k open questions"
    yield Row(f"{what} ÷ at {_FEW}: gateway CPU", Spread.of(ratios), "ratio", _MOST)
    yield Row(f"{what}: gateway CPU", Spread.of([one["many"] for one in spent]), "ms")


def _make_gateway(folder: Path, socket: str) -> GatewayProcess:
    clients = [
        {
            "name": who,
            "key_hash": hash_key(Secret(f"{who}-key")),
            "may_call": ["*"],
            "kind": "person",
            "scopes": ["approvals:read", "approvals:decide", "channels:connect"],
        }
        for who in _PEOPLE
    ]
    config = folder / "passerelle.yaml"
    settings = {"redis_url": f"unix://{socket}", "clients": clients}
    config.write_text(yaml.safe_dump(settings), encoding="utf-8")
    return GatewayProcess(folder, config)


async def _fill(store: Store, who: Principal, count: int) -> None:
    """Opens approvals for one person, in sessions over all shards."""
    writes = Writes(store.log, SystemClock(), SystemIds(), store.runtime_id)
    for first in range(0, count, _AT_ONCE):
        shard = ALL_SHARDS[first // _AT_ONCE % len(ALL_SHARDS)]
        session = writes.ids.mint("se", shard)
        decision = writes.begin(session, {})
        for _ in range(min(_AT_ONCE, count - first)):
            action = writes.ids.mint("act", shard)
            request = _make_request(action, who, decision.now_ms)
            scope = Scope(
                session, writes.ids.mint("th", shard), writes.ids.mint("turn", shard),
                action_id=action,
            )  # fmt: skip
            decision.introduce(EntityRef(EntityKind.ACTION, action))
            decision.add(approval.decide(None, OpenAction(request, scope), decision.now_ms))
        outcome = await writes.commit(decision, {}, AppendOptions())
        if not isinstance(outcome, Written):
            raise MeasurementError(f"questions could not be stored: {outcome}")


def _make_request(action: str, who: Principal, now_ms: int) -> ApprovalRequest:
    return ApprovalRequest(
        action_id=action,
        kind="permission",
        action_type="tool_call",
        title="payments asks to run a tool",
        owner=who.key,
        tenant=who.tenant,
        principal=who.id,
        origin=Origin("outbound", "peer", "payments", "sha256:card"),
        options=(Option("yes", "Pay", "allow_once"), Option("no", "Do not pay", "reject_once")),
        digest="sha256:0f",
        risk="medium",
        on_timeout="reject",
        created_ms=now_ms,
        expires_ms=now_ms + _DAY_MS,
        policy_version="sha256:policy",
        evaluation_id=action.replace("act_", "eval_"),
        subject={"type": "tool_call", "name": "pay", "arguments": {"amount": 40, "to": "Ada"}},
    )


async def _await_inbox(store: Store, who: Principal, count: int) -> None:
    """Waits until the gateway's relay has copied all of them."""

    async def has_all() -> bool:
        return len(await store.projections.list_inbox(who.key)) >= count

    await wait_for(f"the inbox has {count} questions", has_all, _WITHIN_S)


async def welcome(gateway: GatewayProcess, token: str, times: int) -> float:
    """Milliseconds of gateway CPU for one device that connects and is welcomed."""
    if gateway.child is None:
        raise MeasurementError("the gateway is gone")
    before_s = read_cpu_s(gateway.child.process.pid)
    for _ in range(times):
        address = gateway.url.replace("http", "ws", 1) + "/v1/channel"
        async with connect(
            address, subprotocols=[Subprotocol(SUBPROTOCOL)], compression=None, proxy=None
        ) as socket:
            hello = {"t": "hello", "v": 1, "device": "bench", "role": "ui", "token": token}
            await socket.send(orjson.dumps(hello).decode())
            async with asyncio.timeout(_WITHIN_S):
                welcome = orjson.loads(await socket.recv())
        if welcome.get("t") != "welcome" or len(welcome["pending"]) != _PAGE:
            raise MeasurementError(f"no welcome with {_PAGE} questions: {str(welcome)[:200]}")
    return (read_cpu_s(gateway.child.process.pid) - before_s) * 1000 / times
