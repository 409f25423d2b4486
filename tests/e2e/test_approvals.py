"""``passerelle approvals`` and ``passerelle devices`` in use: in a shell, and as an inbox in a terminal."""

from __future__ import annotations

import itertools
import os
import re
import sys
from pathlib import Path
from typing import Final, cast

import httpx
import orjson
import pytest

from passerelle.cli.exit_status import ExitStatus
from passerelle.core.wire.json import JsonObject
from passerelle.demo.processes import GatewayProcess
from tests.support.command import run_command
from tests.support.paired_device import PairedDevice
from tests.support.processes import Caller
from tests.support.scripted_peer import ScriptedPeer
from tests.support.terminal import open_terminal, read_screen
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio

COMMAND: Final = str(Path(sys.executable).with_name("passerelle"))
WITHIN_S: Final = 20.0
PERMISSION: Final = "urn:passerelle:ext:permission:1"
_NUMBERS = itertools.count(1)


async def ask(gateway: GatewayProcess, caller: Caller, risk: str = "medium") -> JsonObject:
    """Makes the agent request permission; returns the approval as the command line lists it."""
    known = {str(one["actionId"]) for one in await list_open(gateway)}
    form: JsonObject = {
        "action_id": f"act_cli_{next(_NUMBERS)}",
        "rev": 1,
        "digest": "sha256:ab",
        "kind": "permission",
        "title": "Pay",
        "subject": {"type": "tool_call", "name": "pay", "arguments": {"amount": "40"}},
        "options": [
            {"option_id": "yes", "name": "Pay", "kind": "allow_once"},
            {"option_id": "no", "name": "Do not", "kind": "reject_once"},
        ],
        "risk": risk,
    }
    await caller.send(f"ask-data {orjson.dumps({PERMISSION: form}).decode()}")

    async def find() -> JsonObject | None:
        fresh = [one for one in await list_open(gateway) if one["actionId"] not in known]
        return fresh[0] if fresh else None

    found = await wait_until(find, WITHIN_S, "the question is listed")
    assert found is not None
    return found


async def list_open(gateway: GatewayProcess) -> list[JsonObject]:
    reported = await run_command(gateway, "approvals", "list", "--json")
    return cast("list[JsonObject]", reported.answer["pending"])


async def read_state(gateway: GatewayProcess, view: JsonObject) -> str:
    shown = await run_command(gateway, "approvals", "show", str(view["actionId"]), "--json")
    return str(shown.answer["state"])


async def test_approval_is_shown_in_full_and_answered_once(
    gateway: GatewayProcess, peer: ScriptedPeer, caller: Caller
) -> None:
    view = await ask(gateway, caller)
    action = str(view["actionId"])
    shown = "\n".join((await run_command(gateway, "approvals", "show", action)).lines)
    for words in (str(view["title"]), action, '"amount": "40"', "[yes] Pay (allow_once)", "medium"):
        assert words in shown
    won = await run_command(gateway, "approvals", "allow", action, "--comment", "as agreed")
    assert won.lines[0].startswith("won  allowed")
    late = await run_command(gateway, "approvals", "deny", action)
    assert late.status == ExitStatus.ALREADY_RESOLVED
    assert "decidedBy: owner" in late.err

    async def is_listed() -> bool:
        ended = await run_command(gateway, "approvals", "list", "--state", "allowed")
        rows = [line.split()[:3] for line in ended.lines]
        return [action, "allowed", "owner"] in rows and ended.lines[-1].endswith(" ended")

    await wait_until(is_listed, WITHIN_S, "it is listed among the allowed ones")
    reported = await run_command(gateway, "approvals", "audit", action)
    assert any("action.resolved" in line and "decidedBy=owner" in line for line in reported.lines)
    assert reported.lines[-1].startswith("record: whole")


async def test_high_risk_requires_the_digest_without_a_terminal(
    gateway: GatewayProcess, peer: ScriptedPeer, caller: Caller
) -> None:
    view = await ask(gateway, caller, "high")
    action = str(view["actionId"])
    assert (await run_command(gateway, "approvals", "allow", action)).status == ExitStatus.FORBIDDEN
    stale = await run_command(gateway, "approvals", "allow", action, "--digest", "sha256:00")
    assert stale.status == ExitStatus.STALE
    assert await read_state(gateway, view) == "pending"
    won = await run_command(gateway, "approvals", "allow", action, "--digest", str(view["digest"]))
    assert won.lines[0].startswith("won")


async def test_agent_is_muted_with_a_rejection_and_separately(
    gateway: GatewayProcess, peer: ScriptedPeer, caller: Caller
) -> None:
    view = await ask(gateway, caller)
    won = await run_command(gateway, "approvals", "deny", str(view["actionId"]), "--mute", "60")
    assert won.lines[0].startswith("won  rejected")
    listed = (await run_command(gateway, "approvals", "mutes")).lines
    assert (listed[1].split()[0], listed[-1]) == (peer.name, "mutes: 1")
    ended = await run_command(gateway, "approvals", "unmute", peer.name)
    assert ended.lines == [f"not muted  {peer.name}"]
    again = await run_command(gateway, "approvals", "mute", peer.name, "--minutes", "5")
    assert again.lines[0].startswith(f"muted  {peer.name}  until ")
    assert await list_open(gateway) == []


async def test_a_phone_is_paired_listed_renamed_and_revoked(
    gateway: GatewayProcess, peer: ScriptedPeer
) -> None:
    offer = (await run_command(gateway, "devices", "pair", "phone", "--json")).answer
    async with httpx.AsyncClient(base_url=gateway.url) as http:
        phone = PairedDevice(http)
        await phone.bring(str(offer["code"]))
        wrong = "000000" if phone.digits != "000000" else "111111"
        refused = await run_command(gateway, "devices", "confirm", phone.device_id, wrong)
        assert refused.status == ExitStatus.CALLER
        split = f"{phone.digits[:3]} {phone.digits[3:]}"
        done = await run_command(gateway, "devices", "confirm", phone.device_id, split)
        assert done.lines == [f"{phone.device_id}  active  phone"]
        assert (await phone.get("/v1/approvals")).status_code == 200
        renamed = await run_command(gateway, "devices", "rename", phone.device_id, "desk")
        assert renamed.lines == [f"{phone.device_id}  active  desk"]
        listed = (await run_command(gateway, "devices", "list")).lines
        assert any(phone.device_id in line and "active" in line for line in listed)
        gone = await run_command(gateway, "devices", "revoke", phone.device_id)
        assert gone.lines == [f"{phone.device_id}  revoked  desk"]
        assert (await phone.get("/v1/approvals")).status_code == 401


async def test_this_machine_signs_decisions_once_it_is_a_device(
    gateway: GatewayProcess, peer: ScriptedPeer, caller: Caller
) -> None:
    added = await run_command(gateway, "devices", "add-this", "laptop", "--json")
    device = str(added.answer["device"]["deviceId"])
    kept = gateway.data_dir / "own-device"
    assert kept.stat().st_mode & 0o077 == 0
    view = await ask(gateway, caller, "critical")
    action, digest = str(view["actionId"]), str(view["digest"])
    # From the first device on, a bearer token alone is not enough: without its key this machine is refused.
    aside = kept.rename(kept.with_suffix(".aside"))
    refused = await run_command(gateway, "approvals", "allow", action, "--digest", digest)
    assert refused.status == ExitStatus.FORBIDDEN
    aside.rename(kept)
    won = await run_command(gateway, "approvals", "allow", action, "--digest", digest, "--json")
    assert won.answer["decision"]["assurance"] == ["bearer", "signature"]
    assert won.answer["decision"]["device"] == device
    assert (await run_command(gateway, "devices", "revoke", device)).status == 0
    kept.unlink()


async def test_inbox_in_a_terminal_shows_new_approvals_and_answers_by_keys(
    gateway: GatewayProcess, peer: ScriptedPeer, caller: Caller
) -> None:
    first = await ask(gateway, caller)
    command = [COMMAND, "approvals", "watch", "--url", gateway.url]
    command += ["--data-dir", str(gateway.data_dir)]
    drawn: list[str] = []
    with open_terminal(command, gateway.folder) as (watch, terminal):

        async def see(words: str) -> None:
            await wait_until(
                lambda: re.search(words, read_screen(terminal, drawn)) is not None, WITHIN_S, words
            )

        def forget() -> None:
            read_screen(terminal, drawn)
            drawn.clear()

        await see(rf"> +medium.*{re.escape(str(first['title']))}")
        os.write(terminal, b"d")
        await see("deny this\\? y / n")
        await see('"amount": "40"')
        os.write(terminal, b"n")
        forget()
        await see("a allow")
        assert await read_state(gateway, first) == "pending"
        os.write(terminal, b"d")
        os.write(terminal, b"y")
        await see("rejected by owner on inbox_")
        assert await read_state(gateway, first) == "rejected"
        grave = await ask(gateway, caller, "high")
        await see(r"> +high")
        forget()
        os.write(terminal, b"a")
        await see("type yes to allow this at high risk")
        os.write(terminal, b"y\r")
        forget()
        await see("a allow")
        assert await read_state(gateway, grave) == "pending"
        os.write(terminal, b"a")
        os.write(terminal, b"yes\r")
        await see("allowed by owner")
        assert await read_state(gateway, grave) == "allowed"
        # Answered elsewhere: the approval leaves this screen too, and the name of the decider is shown.
        other = await ask(gateway, caller)
        forget()
        await see(r"1 open")
        assert (await run_command(gateway, "approvals", "allow", str(other["actionId"]))).lines
        await see("0 open")
        os.write(terminal, b"q")
        await wait_until(lambda: watch.poll() is not None, WITHIN_S, "the command ends")
        assert watch.returncode == ExitStatus.DONE


async def test_without_a_terminal_each_approval_is_a_line(
    gateway: GatewayProcess, peer: ScriptedPeer, caller: Caller
) -> None:
    view = await ask(gateway, caller)
    reported = await run_command(gateway, "approvals", "watch", "--once", "--json")
    lines = [orjson.loads(line) for line in reported.lines]
    assert [(one["inbox"], one["question"]["actionId"]) for one in lines] == [
        ("open", view["actionId"])
    ]
    assert (await run_command(gateway, "approvals", "deny", str(view["actionId"]))).lines
