"""Under which name a device and its tab are stored, as a channel and beside an ack.

``#`` stands before a tab and ``@`` before the stream of an ack, so neither stands within a device or a tab.
"""

from __future__ import annotations

from typing import Final

_SPELLED: Final = (("%", "%25"), ("#", "%23"), ("@", "%40"))


def join_tab(device: str, tab: str | None) -> str:
    """A device and one of its tabs as one name, which no other device and tab have."""
    return _spell(device) if tab is None else f"{_spell(device)}#{_spell(tab)}"


def show_device(name: str) -> str:
    """For people: the device as it calls itself, with its tab behind a ``#``."""
    for sign, spelled in reversed(_SPELLED):
        name = name.replace(spelled, sign)
    return name


def _spell(name: str) -> str:
    for sign, spelled in _SPELLED:
        name = name.replace(sign, spelled)
    return name
