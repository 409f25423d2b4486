"""``passerelle devices``: pairs, lists, renames and revokes devices, including this machine."""

from __future__ import annotations

import io
import sys
import time
from typing import TYPE_CHECKING, Annotated, Final

import typer

from passerelle.a2a_mapping.members import object_at, objects_at, text_at, texts_at
from passerelle.cli.verbs.verb import (
    GatewayLink,
    add_verb,
    flatten,
    format_rows,
    make_group,
    name_path,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from passerelle.core.wire.json import Json, JsonObject

_PATH: Final = "/v1/devices"
_POLL_S: Final = 1.0
_CLAIM_TIMEOUT_S: Final = 130.0
_OPTIONS: Final = "allow_once"
_RISK: Final = "medium"

devices: Final = make_group("Devices: pair, confirm, list, rename, revoke.", "devices pair phone")

DeviceArgument = Annotated[str, typer.Argument(metavar="DEVICE", help="Id of the device.")]


@add_verb(devices, "devices pair phone")
def pair(
    link: GatewayLink,
    name: Annotated[str, typer.Argument(metavar="NAME", help="What the device is called.")],
    scope: Annotated[
        list[str] | None, typer.Option(help="A scope of the device; may be repeated.")
    ] = None,
    *,
    little: Annotated[
        bool,
        typer.Option(
            "--watch", help="For a watch: approve once, up to medium risk, and reject anything."
        ),
    ] = False,
) -> None:
    """Pair a device: show a code, wait for it, and compare six digits.

    Without a terminal, or with --json, it prints the code and exits; `passerelle devices confirm` completes it.
    """
    narrowed: dict[str, Json] = {"options": [_OPTIONS], "riskUpTo": _RISK} if little else {}
    offer = link.post(f"{_PATH}/pair", {"name": name, "scopes": _as_json(scope), **narrowed})
    device = text_at(offer, "deviceId")
    if link.as_json or not sys.stdin.isatty():
        link.print_answer(offer, [f"{device}  {text_at(offer, 'link')}"])
        return
    print(draw_code(text_at(offer, "link")))
    print(f"code: {text_at(offer, 'code')}\nexpires: {text_at(offer, 'expiresAt')}")
    digits = _wait_for_digits(link, device)
    if not typer.confirm(f"The device shows {digits[:3]} {digits[3:]}?", default=False):
        link.delete(name_path(_PATH, device))
        print("passerelle: the device was not paired", file=sys.stderr)
        raise typer.Exit(2)
    confirmed = link.post(name_path(_PATH, device, "confirm"), {"digits": digits})
    link.print_answer(confirmed, _describe(object_at(confirmed, "device")))


@add_verb(devices, "devices confirm dev_2f… 123456")
def confirm(
    link: GatewayLink,
    device: DeviceArgument,
    digits: Annotated[str, typer.Argument(metavar="DIGITS", help="As the device shows them.")],
) -> None:
    """Confirm a device by the six digits that it shows."""
    answer = link.post(name_path(_PATH, device, "confirm"), {"digits": digits.replace(" ", "")})
    link.print_answer(answer, _describe(object_at(answer, "device")))


@add_verb(devices, "devices add-this laptop", "add-this")
def add_this(
    link: GatewayLink,
    name: Annotated[str, typer.Argument(metavar="NAME", help="What this machine is called.")],
) -> None:
    """Pair this machine as a device that signs its answers."""
    from passerelle.core.session.device import compose_proof
    from passerelle.permission_bridge.devices.device_keys import (
        make_key,
        read_public,
        save_own_device,
        sign,
    )

    key = make_key()
    code = text_at(link.post(f"{_PATH}/pair", {"name": name}), "code")
    claim: dict[str, Json] = {"code": code, "publicKey": read_public(key), "algorithm": "Ed25519"}
    claimed = link.post(f"{_PATH}/claim", claim)
    device = text_at(claimed, "deviceId")
    signature = sign(key, compose_proof(device, text_at(claimed, "nonce")))
    proven = link.post(f"{_PATH}/prove", {"code": code, "signature": signature})
    answer = link.post(name_path(_PATH, device, "confirm"), {"digits": text_at(proven, "digits")})
    save_own_device(link.find_local().data_dir, device, key)
    link.print_answer(answer, _describe(object_at(answer, "device")))


@add_verb(devices, "devices list", "list")
def list_all(link: GatewayLink) -> None:
    """List unconfirmed, confirmed and revoked devices."""
    answer = link.read(_PATH)
    link.print_answer(answer, _list(objects_at(answer, "devices")))


@add_verb(devices, "devices rename dev_2f… desk")
def rename(
    link: GatewayLink,
    device: DeviceArgument,
    name: Annotated[str, typer.Argument(metavar="NAME", help="Its new name.")],
) -> None:
    """Rename a device."""
    answer = link.patch(name_path(_PATH, device), {"name": name})
    link.print_answer(answer, _describe(object_at(answer, "device")))


@add_verb(devices, "devices revoke dev_2f…")
def revoke(link: GatewayLink, device: DeviceArgument) -> None:
    """Revoke a device at once, and list its latest decisions."""
    answer = link.delete(name_path(_PATH, device))
    link.print_answer(answer, _describe_revoked(answer))


def draw_code(text: str) -> str:
    """Returns a QR code as text, two modules per character."""
    import segno

    drawn = io.StringIO()
    segno.make(text, error="l", micro=False).terminal(drawn, border=2, compact=True)
    return drawn.getvalue()


def _wait_for_digits(link: GatewayLink, device: str) -> str:
    """Waits for the device to prove its key; returns its digits."""
    until_s = time.monotonic() + _CLAIM_TIMEOUT_S
    while time.monotonic() < until_s:
        listed = objects_at(link.read(_PATH), "devices")
        found = next((one for one in listed if text_at(one, "deviceId") == device), None)
        if found is not None and text_at(found, "digits"):
            return text_at(found, "digits")
        time.sleep(_POLL_S)
    print("passerelle: the code was not used in time", file=sys.stderr)
    raise typer.Exit(2)


def _as_json(given: list[str] | None) -> Json:
    return None if given is None else [*given]


def _list(found: list[JsonObject]) -> Iterator[str]:
    yield from format_rows(
        found,
        {
            "DEVICE": "deviceId",
            "NAME": lambda one: flatten(text_at(one, "name")),
            "STATE": "state",
            "MAY": _name_rights,
            "SINCE": lambda one: (
                text_at(one, "revokedAt")
                or text_at(one, "confirmedAt")
                or text_at(one, "offeredAt")
            ),
            "PUSH": "push",
        },
    )
    yield f"devices: {sum(text_at(one, 'state') == 'active' for one in found)} trusted"


def _name_rights(device: JsonObject) -> str:
    rights = ", ".join(texts_at(device, "scopes"))
    bound = text_at(device, "riskUpTo")
    return f"{rights} (yes up to {bound})" if bound else rights


def _describe(device: JsonObject) -> Iterator[str]:
    yield "  ".join(text_at(device, name) for name in ("deviceId", "state", "name"))


def _describe_revoked(answer: JsonObject) -> Iterator[str]:
    yield from _describe(object_at(answer, "device"))
    for one in objects_at(answer, "decisions"):
        words = (text_at(one, name) for name in ("decidedAt", "actionId", "outcome", "optionId"))
        yield f"it decided: {'  '.join(words)}"
    if answer.get("withdrawn"):
        yield f"votes withdrawn: {answer['withdrawn']}"
