"""Secrets at rest: sealed for one place, and opened by every known key."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from passerelle.core.errors import ConfigInvalid
from passerelle.gateway.settings.model import Settings
from passerelle.gateway.settings.values import load_sealer
from passerelle.runtime.common.clock import SystemIds
from passerelle.runtime.common.sealer import KEY_FILE, Sealer, make_sealer, mint_key
from passerelle.runtime.common.secret import Secret

DRAW = SystemIds().draw
OLD, NEW = bytes(range(32)), bytes(range(1, 33))
PLACE = "task_1/pc1:hook"
PLAIN = b'{"token":"t0p"}'


def test_sealed_value_opens_at_its_place_and_shows_nothing_of_itself() -> None:
    sealer = make_sealer([OLD], DRAW)
    sealed = sealer.seal(PLAIN, PLACE)
    assert sealer.unseal(sealed, PLACE) == PLAIN
    assert b"t0p" not in sealed
    assert sealed != sealer.seal(PLAIN, PLACE)


def test_value_copied_to_another_place_does_not_open() -> None:
    sealer = make_sealer([OLD], DRAW)
    with pytest.raises(ConfigInvalid, match="changed or moved"):
        sealer.unseal(sealer.seal(PLAIN, PLACE), "task_2/pc1:hook")


def test_one_changed_byte_is_noticed() -> None:
    sealer = make_sealer([OLD], DRAW)
    sealed = bytearray(sealer.seal(PLAIN, PLACE))
    sealed[-8] ^= 1
    with pytest.raises(ConfigInvalid, match="changed or moved"):
        sealer.unseal(bytes(sealed), PLACE)


@pytest.mark.parametrize("sealed", [b"", b"1", b"1.", b"2.00000000.AAAA", b"plain", b"\xff.\xff"])
def test_text_that_was_never_sealed_is_refused(sealed: bytes) -> None:
    with pytest.raises(ConfigInvalid, match="not among those given"):
        make_sealer([OLD], DRAW).unseal(sealed, PLACE)


def test_rotated_key_seals_while_the_old_one_still_opens() -> None:
    kept = make_sealer([OLD], DRAW).seal(PLAIN, PLACE)
    rotated = make_sealer([NEW, OLD], DRAW)
    assert rotated.unseal(kept, PLACE) == PLAIN
    assert not rotated.is_current(kept)
    renewed = rotated.seal(PLAIN, PLACE)
    assert rotated.is_current(renewed)
    assert make_sealer([NEW], DRAW).unseal(renewed, PLACE) == PLAIN
    with pytest.raises(ConfigInvalid, match="not among those given"):
        make_sealer([NEW], DRAW).unseal(kept, PLACE)


def load(settings: Settings, folder: Path) -> Sealer:
    sealer = load_sealer(settings, folder, DRAW)
    assert sealer is not None
    return sealer


def test_embedded_engine_gets_a_key_of_its_own_once(tmp_path: Path) -> None:
    sealed = load(Settings(), tmp_path).seal(PLAIN, PLACE)
    assert load(Settings(), tmp_path).unseal(sealed, PLACE) == PLAIN
    assert stat.S_IMODE((tmp_path / KEY_FILE).stat().st_mode) == 0o600


def test_shared_store_without_a_key_keeps_no_secrets(tmp_path: Path) -> None:
    assert load_sealer(Settings(redis_url=Secret("redis://127.0.0.1")), tmp_path, DRAW) is None
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("form", ["base64", "urlsafe", "hex"])
def test_key_is_read_in_each_form(tmp_path: Path, form: str) -> None:
    key = bytes([251] * 32)
    text = {
        "base64": "+/v7+/v7+/v7+/v7+/v7+/v7+/v7+/v7+/v7+/v7+/s=",
        "urlsafe": "-_v7-_v7-_v7-_v7-_v7-_v7-_v7-_v7-_v7-_v7-_s=",
        "hex": key.hex(),
    }[form]
    sealer = load(Settings(secret_key=Secret(text)), tmp_path)
    assert make_sealer([key], DRAW).unseal(sealer.seal(PLAIN, PLACE), PLACE) == PLAIN


def test_key_file_holds_one_key_a_line_and_the_first_one_seals(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text(f"{NEW.hex()}\n{OLD.hex()}\n", encoding="ascii")
    sealer = load(Settings(redis_url=Secret("redis://x"), secret_key_file=path), tmp_path)
    assert sealer.unseal(make_sealer([OLD], DRAW).seal(PLAIN, PLACE), PLACE) == PLAIN
    assert make_sealer([NEW], DRAW).unseal(sealer.seal(PLAIN, PLACE), PLACE) == PLAIN


@pytest.mark.parametrize("text", [",", "short", "0" * 63, "z" * 64, "AAAA" * 12])
def test_key_of_another_form_is_refused_without_being_shown(tmp_path: Path, text: str) -> None:
    with pytest.raises(ConfigInvalid, match="secret_key") as caught:
        load_sealer(Settings(secret_key=Secret(text)), tmp_path, DRAW)
    assert text == "," or text not in str(caught.value)


def test_key_file_that_is_missing_or_empty_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    with pytest.raises(ConfigInvalid, match="secret_key_file"):
        load_sealer(Settings(secret_key_file=path), tmp_path, DRAW)
    path.touch()
    with pytest.raises(ConfigInvalid, match="holds no key"):
        load_sealer(Settings(secret_key_file=path), tmp_path, DRAW)


def test_sealer_shows_no_key() -> None:
    assert OLD.hex() not in repr(make_sealer([OLD], DRAW))
    assert mint_key(DRAW) != mint_key(DRAW)
