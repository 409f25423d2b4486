"""Under which name a device and its tab are stored, as a channel and beside an ack.

``#`` stands before a tab and ``@`` before the stream of an ack, so neither stands within a device or a tab.
"""

from __future__ import annotations

from typing import Final

_SPELLED: Final = (("%", "%25"), ("#", "%23"), ("@", "%40"))


def join_tab(device: str, tab: str | None) -> str:
    """A device and one of its tabs as one name, which no other device and tab have."""
    return _spell(device) if tab is None else f"{_spell(device)}#{_spell(tab)}"


def split_tab(name: str) -> tuple[str, str | None]:
    """The device and the tab of a stored name, as they call themselves."""
    device, mark, tab = name.partition("#")
    return _read(device), _read(tab) if mark else None


def _spell(name: str) -> str:
    for sign, spelled in _SPELLED:
        name = name.replace(sign, spelled)
    return name


def _read(name: str) -> str:
    for sign, spelled in reversed(_SPELLED):
        name = name.replace(spelled, sign)
    return name
