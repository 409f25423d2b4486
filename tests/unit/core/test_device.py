"""The table of devices: which commands each state allows, and that a replay gives the list again."""

from dataclasses import replace

import pytest

from passerelle.core.errors import CallerError, InvalidInput, NotFound
from passerelle.core.events import Event
from passerelle.core.payloads.device import DeviceKey, DeviceRights
from passerelle.core.principal import Principal
from passerelle.core.session.device import (
    CODE_MS,
    CONFIRM_MS,
    MOST,
    TABLE,
    Claim,
    Confirm,
    DeviceCommand,
    DeviceList,
    Offer,
    Prove,
    Rename,
    Revoke,
    SetPush,
    decide,
    derive_digits,
    evolve,
)
from passerelle.core.wire.codec import from_bytes, to_bytes
from passerelle.core.wire.times import format_ms
from tests.support.approvals import NOW_MS, make_id

ADA = Principal("ada", kind="person")
HOME = make_id("se")
KEY = DeviceKey("key_1", "Ed25519", "AAAA")
OTHER_KEY = replace(KEY, public="BBBB")
DEVICE = make_id("dev")


class Devices:
    """What a store would do."""

    def __init__(self) -> None:
        self.state: DeviceList | None = None
        self.events: list[Event] = []
        self.now_ms = NOW_MS

    def apply(self, command: DeviceCommand) -> DeviceList:
        for fact in decide(self.state, command, "ada", HOME, self.now_ms):
            number = len(self.events) + 1
            event = Event(make_id("ev", number), format_ms(self.now_ms), "rt", fact, number)
            self.events.append(event)
            self.state = evolve(self.state, event)
        assert self.state is not None
        return self.state

    def reach(self, state: str) -> "Devices":
        path: dict[str, list[DeviceCommand]] = {
            "offered": [offer()],
            "claimed": [offer(), CLAIM],
            "proven": [offer(), CLAIM, PROVE],
            "active": [offer(), CLAIM, PROVE, CONFIRM],
            "revoked": [offer(), CLAIM, PROVE, CONFIRM, Revoke(DEVICE)],
        }
        for command in path[state]:
            self.apply(command)
        return self


def offer(number: int = 1) -> Offer:
    return Offer(make_id("dev", number), ADA, "phone", ("x",), DeviceRights(), f"code-{number}")


CLAIM = Claim("code-1", KEY, "nonce")
PROVE = Prove("code-1", "token")
CONFIRM = Confirm(DEVICE, derive_digits(DEVICE, KEY, "nonce"))
COMMANDS: tuple[DeviceCommand, ...] = (
    CLAIM,
    PROVE,
    CONFIRM,
    Rename(DEVICE, "desk"),
    Revoke(DEVICE),
    SetPush(DEVICE, "push.example.com"),
)


@pytest.mark.parametrize("state", ["offered", "claimed", "proven", "active", "revoked"])
@pytest.mark.parametrize("command", COMMANDS)
def test_every_pair_is_a_row_of_the_table_or_a_refusal(state: str, command: DeviceCommand) -> None:
    devices = Devices().reach(state)
    target = next((to for source, to in TABLE[type(command)].items() if source == state), None)
    if target is None:
        before = devices.state
        with pytest.raises(CallerError) as refused:
            devices.apply(command)
        assert devices.state is before
        assert type(command).__name__.lower() not in str(refused.value).split(), "words for people"
        return
    device = devices.apply(command).find(DEVICE)
    assert device is not None
    assert device.state == target


def test_digits_depend_on_the_key_so_that_a_relay_shows_other_ones() -> None:
    assert derive_digits(DEVICE, KEY, "nonce") != derive_digits(DEVICE, OTHER_KEY, "nonce")
    assert derive_digits(DEVICE, KEY, "nonce") != derive_digits(DEVICE, KEY, "other")
    devices = Devices().reach("proven")
    with pytest.raises(InvalidInput, match="digits"):
        devices.apply(Confirm(DEVICE, derive_digits(DEVICE, OTHER_KEY, "nonce")))


def test_codes_and_the_wait_for_a_confirmation_end_by_their_time() -> None:
    offered, proven = Devices().reach("offered"), Devices().reach("proven")
    offered.now_ms += CODE_MS
    with pytest.raises(NotFound):
        offered.apply(CLAIM)
    proven.now_ms += CONFIRM_MS
    with pytest.raises(NotFound):
        proven.apply(CONFIRM)


def test_only_an_active_device_is_found_by_its_token() -> None:
    devices = Devices().reach("proven")
    assert devices.state is not None
    assert devices.state.find_token("token") is None
    assert devices.apply(CONFIRM).find_token("token") is not None
    assert devices.apply(Revoke(DEVICE)).find_token("token") is None


def test_a_list_is_bounded_and_what_ran_out_makes_room() -> None:
    devices = Devices()
    for number in range(MOST):
        devices.apply(offer(number))
    with pytest.raises(InvalidInput, match="revoke"):
        devices.apply(offer(MOST))
    devices.now_ms += CODE_MS
    for number in range(MOST, 4 * MOST):
        devices.now_ms += CODE_MS
        devices.apply(offer(number))
    assert devices.state is not None
    assert len(devices.state.devices) == 2 * MOST


def test_a_replay_gives_the_list_byte_for_byte() -> None:
    devices = Devices().reach("revoked")
    replayed: DeviceList | None = None
    for event in (*devices.events, devices.events[-1]):
        replayed = evolve(replayed, event)
    assert replayed is not None
    assert devices.state is not None
    assert to_bytes(replayed) == to_bytes(devices.state)
    assert from_bytes(DeviceList, to_bytes(replayed)) == replayed
