"""Runs the evidence checker on bundles of a whole gateway: what it proves, and that it finds every changed byte."""

from __future__ import annotations

import base64
import hashlib
import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, cast

import orjson
import pytest

from passerelle.cli import check_evidence
from passerelle.cli.check_evidence import Report, check
from passerelle.core.evidence.bundle import pack
from passerelle.core.wire.canonical import canonicalize
from passerelle.runtime.common.signatures import Signer, mint_signing_key, read_signing_key
from tests.integration.devices.asking import ADA, BOB, ask, make_answer, say
from tests.integration.evidence.exporting import PATHS, Bundle, approve, export
from tests.integration.evidence.test_exports import read, settle
from tests.support.paired_device import Keys, PairedDevice, sign_decision

if TYPE_CHECKING:
    from collections.abc import Callable

    from passerelle.core.wire.json import Json, JsonObject
    from tests.integration.callers.rig import Instance, Rig

pytestmark = [pytest.mark.anyio, pytest.mark.requirement("CMD-20")]
CHANGES: Final = 1_000
PROGRAM: Final = Path(check_evidence.__file__)


@dataclass
class Draws:
    """Pseudorandom numbers from a seed, the same in each run."""

    seed: int = 23
    drawn: int = 0

    def below(self, bound: int) -> int:
        self.drawn += 1
        return int.from_bytes(hashlib.sha256(f"{self.seed}:{self.drawn}".encode()).digest()) % bound


def run_alone(folder: Path, content: bytes, *flags: str) -> subprocess.CompletedProcess[str]:
    """Runs the program as a third party does: alone in a folder, without access to this package."""
    program, bundle = folder / "check_evidence.py", folder / "bundle.jsonl.gz"
    program.write_bytes(PROGRAM.read_bytes())
    bundle.write_bytes(content)
    return subprocess.run(
        [sys.executable, "-I", "-S", program, bundle, *flags],
        cwd=folder,
        env={},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def find_fingerprint(at: Instance) -> str:
    """The fingerprint of the gateway's key, as its operator publishes it."""
    (key,) = at.gateway.parts.tasks.exporting.signer.keys
    return key.kid


def repack(bundle: Bundle, change: Callable[[list[bytes]], None]) -> bytes:
    """Changes lines of the bundle and packs them into a valid container."""
    lines = [*bundle.lines]
    change(lines)
    return pack(b"".join(line + b"\n" for line in lines))


def forge(bundle: Bundle, change: Callable[[JsonObject], None]) -> bytes:
    """A bundle of a forger with another key, who changes a fact and recomputes all hashes."""
    signer = Signer((read_signing_key(mint_signing_key("EdDSA"), "forger"),))
    lines, manifest = [*bundle.lines], bundle.manifest
    for place, entry in enumerate(manifest["entries"], 1):
        parsed = orjson.loads(lines[place])
        change(parsed)
        if parsed != orjson.loads(lines[place]):
            lines[place] = orjson.dumps(parsed)
        entry["sha256"] = hashlib.sha256(lines[place]).hexdigest()
    lines[0] = canonicalize(manifest)
    (made,) = signer.sign(lines[0])
    jwk = {name: signer.keys[0].jwk[name] for name in ("kty", "crv", "x")}
    signature: JsonObject = {"jwk": jwk, "protected": made.protected, "signature": made.signature}
    lines[-1] = canonicalize({"signatures": [signature]})
    return pack(b"".join(line + b"\n" for line in lines))


async def make_all(at: Instance) -> dict[str, Bundle]:
    view, _ = await approve(at)
    await settle(at, str(view["sessionId"]), view["taskId"])
    return {kind: await export(at, kind, {"taskId": view["taskId"]}) for kind in PATHS}


async def test_report_states_who_approved_what_and_when_and_with_which_digest(rig: Rig) -> None:
    at = await rig.start(clients=[ADA])
    view, phone = await approve(at)
    await settle(at, str(view["sessionId"]), view["taskId"])
    bundle = await export(at, "evidence", {"taskId": view["taskId"]})
    decided = (await read(at, f"/v1/approvals/{view['actionId']}"))["decision"]
    report = check(bundle.content)
    assert report.faults == report.missing == []
    assert report.origin.startswith("consistent, origin not proven")
    assert bundle.response["evidenceId"] in report.about[0]
    (statement,) = [one for one in report.statements if "has allowed" in one]
    for word in (
        f"{decided['decidedAt']}: person ada has allowed question {view['actionId']}",
        "run a tool: pay(amount: 40)",
        'subject {"bytes":61,"content":{"arguments":{"amount":"40"},"name":"pay"',
        "by option yes (Pay)",
        f"bound to digest {view['digest']}",
        f"signed by device {phone.device_id} with key key_",
        "which the gateway says is that of ada since 20",
    ):
        assert word in statement
    policy = [one for one in report.statements if "policy says" in one]
    assert len(policy) >= 2


async def test_origin_is_proven_only_by_a_trusted_fingerprint(rig: Rig, tmp_path: Path) -> None:
    at = await rig.start(clients=[ADA])
    bundles = await make_all(at)
    gateway = find_fingerprint(at)
    (device,) = bundles["evidence"].list("device")
    for bundle in bundles.values():
        proven = check(bundle.content, [gateway])
        assert proven.ok
        assert proven.origin == f"proven, signed by the gateway key {gateway}, which you trust"
        strange = check(bundle.content, ["X" * 43])
        assert strange.faults == [f"signed by the gateway key {gateway}, which you do not trust"]
        signed = check(bundle.content, [device["keyId"]])
        assert signed.origin.startswith("consistent, origin not proven")
        assert any(
            f"with key {device['keyId']}, which you trust" in one for one in signed.statements
        )
        alone = run_alone(tmp_path, bundle.content, f"--trust={gateway}")
        assert (alone.returncode, alone.stderr) == (0, "")
        assert alone.stdout.splitlines() == [*proven.lines()]
        unpacked = check(b"".join(line + b"\n" for line in bundle.lines), [gateway])
        assert [*unpacked.lines()] == [*proven.lines()]


async def test_generated_key_is_kept_until_configured_keys_replace_it(
    rig: Rig, tmp_path: Path
) -> None:
    first, again = [find_fingerprint(await rig.start(clients=[ADA])) for _ in range(2)]
    assert first == again
    assert (rig.folder / "evidence-key").stat().st_mode & 0o777 == 0o600
    files = [tmp_path / name for name in ("new.pem", "old.pem")]
    algorithms: tuple[Literal["ES256", "EdDSA"], ...] = ("ES256", "EdDSA")
    for file, algorithm in zip(files, algorithms, strict=True):
        file.write_text(mint_signing_key(algorithm).get_secret_value())
        file.chmod(0o600)
    named_keys = [{"file": str(file)} for file in files]
    at = await rig.start(clients=[ADA], signing={"keys": named_keys, "cards": False})
    bundle = (await make_all(at))["evidence"]
    published = (await at.http.get("/.well-known/jwks.json")).json()["keys"]
    assert [key["alg"] for key in published] == ["ES256", "EdDSA"]
    # While keys rotate both sign, and a verifier needs to trust only one of them.
    for key in published:
        assert key["kid"] != first
        assert check(bundle.content, [key["kid"]]).origin.startswith("proven")
    assert check(bundle.content, [first]).faults


async def test_votes_and_devices_with_either_algorithm_are_checked(rig: Rig) -> None:
    tier = {"risk": "high", "who": ["ada", "bob"], "need": 2}
    at = await rig.start(clients=[ADA, BOB], policy={"approvers": [tier]})
    phones = {
        "ada": PairedDevice(at.http, Keys("Ed25519")),
        "bob": PairedDevice(at.http, Keys("ES256")),
    }
    rights = ["approvals:read", "approvals:decide", "approvals:decide-high"]
    for who, phone in phones.items():
        await phone.pair(f"{who}-key", scopes=rights)
    view = await ask(at, "high")
    for phone, status in ((phones["ada"], 202), (phones["bob"], 200)):
        answer = make_answer(await get(at, phone, view))
        response = await say(at, phone.headers, sign_decision(phone, answer))
        assert response.status_code == status, response.text
    await settle(at, str(view["sessionId"]), view["taskId"])
    bundle = await export(at, "evidence", {"taskId": view["taskId"]})
    assert {one["algorithm"] for one in bundle.list("device")} == {"Ed25519", "ES256"}
    report = check(bundle.content)
    assert report.faults == []
    (vote,) = [one for one in report.statements if "has given a vote" in one]
    assert f"ada has given a vote on question {view['actionId']}" in vote
    assert f"signed by device {phones['ada'].device_id}" in vote
    (statement,) = [one for one in report.statements if "person bob has allowed" in one]
    assert f"signed by device {phones['bob'].device_id}" in statement


async def get(at: Instance, phone: PairedDevice, view: JsonObject) -> JsonObject:
    return cast("JsonObject", (await phone.get(f"/v1/approvals/{view['actionId']}")).json())


async def test_each_of_a_thousand_changed_bytes_is_detected_and_located(rig: Rig) -> None:
    at = await rig.start(clients=[ADA])
    bundles = [*(await make_all(at)).values()]
    draw = Draws()
    for number in range(CHANGES):
        bundle = bundles[number % len(bundles)]
        if number % 2:
            content = change_byte(draw, bundle.content)
            report = check(content)
            assert named(report, "container") or named(report, "line 1 "), number
            continue
        line = draw.below(len(bundle.lines))

        def change(lines: list[bytes], line: int = line) -> None:
            lines[line] = change_byte(draw, lines[line])

        report = check(repack(bundle, change))
        last = f"line {len(bundle.lines)} " if line == len(bundle.lines) - 1 else "no such name"
        # A byte that turns into a line break moves all lines below it.
        words = (f"line {line + 1} ", f"(line {line + 1})", last, "whole lines")
        assert any(named(report, word) for word in words), (number, line, report.faults)


def change_byte(draw: Draws, content: bytes) -> bytes:
    changed = bytearray(content)
    changed[draw.below(len(content))] ^= 1 + draw.below(255)
    return bytes(changed)


def named(report: Report, word: str) -> bool:
    return any(word in fault for fault in report.faults)


async def test_standalone_program_detects_changed_bytes(rig: Rig, tmp_path: Path) -> None:
    at = await rig.start(clients=[ADA])
    bundle = (await make_all(at))["review"]
    draw = Draws()
    for _ in range(5):
        done = run_alone(tmp_path, change_byte(draw, bundle.content))
        assert (done.returncode, done.stderr) == (1, "")
        assert "fault: " in done.stdout
        assert done.stdout.splitlines()[-1].startswith("evidence: not valid")
    missing = run_alone(tmp_path, b"")
    assert missing.returncode == 1
    unread = subprocess.run(
        [sys.executable, "-I", "-S", PROGRAM, tmp_path / "none"],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (unread.returncode, unread.stdout) == (2, "")
    assert unread.stderr == f"{tmp_path / 'none'} cannot be read: No such file or directory\n"


def set_option(parsed: JsonObject) -> None:
    if parsed.get("type") == "action.resolved":
        cast("dict[str, Any]", parsed)["payload"]["decision"]["optionId"] = "no"


def set_option_and_shown(parsed: JsonObject) -> None:
    set_option(parsed)
    if "signed" in parsed:
        cast("dict[str, Any]", parsed)["signed"]["optionId"] = "no"


def set_subject(parsed: JsonObject) -> None:
    if parsed.get("type") == "action.required":
        subject = cast("dict[str, Any]", parsed)["payload"]["request"]["subject"]
        subject["content"]["arguments"]["amount"] = "4000"


def set_decider(parsed: JsonObject) -> None:
    if parsed.get("type") == "action.resolved":
        cast("dict[str, Any]", parsed)["payload"]["decision"]["decidedBy"] = "eve"


def set_digest(parsed: JsonObject) -> None:
    if parsed.get("type") == "action.resolved":
        cast("dict[str, Any]", parsed)["payload"]["decision"]["digest"] = "sha256:00"


def set_key(parsed: JsonObject) -> None:
    if "confirmedAt" in parsed:
        parsed["public"] = Keys().public


def set_event(parsed: JsonObject) -> None:
    if parsed.get("type") == "turn.submitted":
        parsed["eventId"] = "ev_0"


def set_place(parsed: JsonObject) -> None:
    if parsed.get("type") == "turn.submitted":
        parsed["sequence"] = 1


def set_evidence(parsed: JsonObject) -> None:
    if parsed.get("evidence"):
        parsed["evidence"] = "evd_0"


def set_events(parsed: JsonObject) -> None:
    if parsed.get("text") and not parsed.get("evidence"):
        events: list[Json] = ["ev_0"]
        parsed["events"] = events


@pytest.mark.parametrize(
    ("kind", "change", "fault"),
    [
        ("evidence", set_option, "the signed data differs from that of the fact"),
        ("evidence", set_option_and_shown, "is not that of this answer"),
        ("evidence", set_subject, "the digest of the question is not that of what was asked"),
        ("evidence", set_digest, "bound to a digest other than that of the question"),
        ("evidence", set_decider, "the signing device belongs to another person than the decision"),
        ("evidence", set_key, "the id of its key is not that of the key"),
        ("evidence", set_event, "is not the fact that the manifest names"),
        ("evidence", set_place, "are missing, and so are their ids"),
        ("review", set_evidence, "names other evidence than the manifest"),
        ("review", set_events, "names a fact that is not here"),
    ],
)
async def test_forger_with_another_key_cannot_change_what_a_device_has_signed(
    rig: Rig, kind: str, change: Callable[[JsonObject], None], fault: str
) -> None:
    at = await rig.start(clients=[ADA])
    bundle = (await make_all(at))[kind]
    forged = check(forge(bundle, lambda _entry: None))
    assert forged.ok
    assert forged.origin.startswith("consistent, origin not proven")
    assert check(forge(bundle, lambda _entry: None), [find_fingerprint(at)]).faults
    assert named(check(forge(bundle, change)), fault)


async def test_missing_and_inserted_lines_are_located(rig: Rig) -> None:
    at = await rig.start(clients=[ADA])
    bundle = (await make_all(at))["evidence"]
    *others, last = bundle.lines
    for lines, word in (
        ([*others[:3], *others[4:], last], "line 4 (fact "),
        ([*others[:3], others[3], *others[3:], last], "line 5 (fact "),
        (others, "(signatures): "),
        ([*others, last, b"{}"], "(signatures): "),
        ([*others, b'{"signatures":[]}'], "no gateway has signed"),
        ([*others, last + b" "], "is not in canonical form"),
    ):
        assert named(check(pack(b"".join(line + b"\n" for line in lines))), word)
    whole = b"".join(line + b"\n" for line in bundle.lines)
    assert named(check(whole[:-1]), "whole lines")
    for size in range(0, len(whole), 997):
        assert check(whole[:size]).faults


async def test_missing_content_is_reported(rig: Rig) -> None:
    at = await rig.start(clients=[ADA])
    view = await ask(at)
    big = (await at.send("ada-key", "big")).json()["result"]["task"]["id"]
    open_one = check((await export(at, "evidence", {"taskId": view["taskId"]})).content)
    assert [one for one in open_one.missing if f"an answer to question {view['actionId']}" in one]
    record = await read(at, f"/v1/tasks/{big}")
    await settle(at, record["sessionId"], big)
    bundle = await export(at, "evidence", {"taskId": big})
    spilled = [one for one in bundle.manifest["files"] if one["of"] == "content"]
    assert spilled
    report = check(bundle.content)
    assert [one for one in report.missing if spilled[0]["sha256"] in one]
    content = await read_output(at, big, spilled[0]["sha256"])
    given = check(bundle.content, files=[content])
    assert [one for one in given.statements if spilled[0]["sha256"] in one]
    assert named(check(bundle.content, files=[b"other"]), "no fact names a file with SHA-256")


async def read_output(at: Instance, task: str, sha256: str) -> bytes:
    part = await read(at, f"/v1/tasks/{task}/outputs/{sha256}?limit=1048576")
    return base64.b64decode(part["content"])


async def test_only_the_canonical_form_of_a_signature_is_accepted(rig: Rig) -> None:
    """The last of 86 letters has four bits that decoders ignore."""
    at = await rig.start(clients=[ADA])
    bundle = (await make_all(at))["evidence"]
    last = json.loads(bundle.lines[-1])
    letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
    (one,) = last["signatures"]
    for name, spare in (("signature", 4), ("protected", 0)):
        text = one[name]
        place = letters.index(text[-1])
        for more in range(1, 1 << spare):
            changed = {**one, name: text[:-1] + letters[place ^ more]}
            lines = [*bundle.lines[:-1], canonicalize({"signatures": [changed]})]
            report = check(pack(b"".join(line + b"\n" for line in lines)))
            assert named(report, f"{name} is not base64url in canonical form")
    # An unsigned member is refused, and a second signature must be valid as well.
    for changed in ({**one, "note": "x"}, {**one, "jwk": {**one["jwk"], "use": "sig"}}):
        lines = [*bundle.lines[:-1], canonicalize({"signatures": [one, changed]})]
        assert check(pack(b"".join(line + b"\n" for line in lines))).faults


JUNK: Final[tuple[Json, ...]] = (
    *(None, True, 0, -1, 2**70, 1e300, "", "x", "\ud800", "\x1b[2J"),
    *orjson.loads('[[], [null], [[]], {}, {"a": {"b": []}}]'),
    orjson.loads("[" * 400 + "]" * 400),
)


def list_members(value: Json, path: tuple[str | int, ...] = ()) -> list[tuple[str | int, ...]]:
    """The path of each member of a value, at any depth."""
    items: list[tuple[str | int, Json]] = []
    if isinstance(value, dict):
        items = [*value.items()]
    elif isinstance(value, list):
        items = [*enumerate(value)]
    found = [(*path, name) for name, _ in items]
    return found + [way for name, one in items for way in list_members(one, (*path, name))]


async def test_malformed_member_under_a_valid_signature_causes_no_traceback(
    rig: Rig,
) -> None:
    at = await rig.start(clients=[ADA])
    bundles = [*(await make_all(at)).values()]
    draw, refused = Draws(), 0
    for number in range(400):
        bundle = bundles[number % len(bundles)]
        line = draw.below(len(bundle.lines) - 1)
        whole = orjson.loads(bundle.lines[line])
        ways = [way for way in list_members(whole) if way[0] != "entries"]
        if not ways:
            continue
        way, junk = ways[draw.below(len(ways))], JUNK[draw.below(len(JUNK))]
        report = check(replace_and_sign(bundle, line, way, junk))
        refused += not report.ok
        # Each line of the report prints as one terminal line, whatever it contains.
        assert all(check_evidence.show(one).isprintable() for one in report.lines())
    assert refused > 50


def replace_and_sign(bundle: Bundle, line: int, way: tuple[str | int, ...], junk: Json) -> bytes:
    """A forger's bundle with one member of one line replaced."""
    signer = Signer((read_signing_key(mint_signing_key("EdDSA"), "forger"),))
    lines = [*bundle.lines]
    parsed = json.loads(lines[line])
    holder = parsed
    for step in way[:-1]:
        holder = holder[step]
    holder[way[-1]] = junk
    lines[line] = json.dumps(parsed).encode()
    manifest = parsed if line == 0 else bundle.manifest
    for place, entry in enumerate(manifest["entries"], 1):
        entry["sha256"] = hashlib.sha256(lines[place]).hexdigest()
    lines[0] = json.dumps(manifest).encode()
    (made,) = signer.sign(lines[0])
    jwk = {name: signer.keys[0].jwk[name] for name in ("kty", "crv", "x")}
    signature: JsonObject = {"jwk": jwk, "protected": made.protected, "signature": made.signature}
    lines[-1] = canonicalize({"signatures": [signature]})
    return pack(b"".join(one + b"\n" for one in lines))
