"""Names of devices and tabs: whatever signs they have, each pair has a name of its own."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from passerelle.channels.device_name import join_tab, show_device

NAMES = st.text(alphabet="a%#@2345", max_size=6)
TABS = st.none() | NAMES


@given(NAMES, TABS, NAMES, TABS)
@example("a#b", None, "a", "b")
@example("a%23b", None, "a#b", None)
@example("a", "#b", "a#", "b")
def test_no_two_devices_with_their_tabs_have_one_name(
    device: str, tab: str | None, other: str, other_tab: str | None
) -> None:
    is_same = (device, tab) == (other, other_tab)
    assert (join_tab(device, tab) == join_tab(other, other_tab)) is is_same


@given(NAMES, TABS)
def test_signs_that_mean_something_in_a_name_are_ours_alone(device: str, tab: str | None) -> None:
    name = join_tab(device, tab)
    assert (name.count("#"), name.count("@")) == (0 if tab is None else 1, 0)


@given(NAMES)
def test_people_see_what_a_device_calls_itself(device: str) -> None:
    assert show_device(join_tab(device, None)) == device
    assert show_device(join_tab(device, "2")) == f"{device}#2"


def test_a_plain_name_is_stored_as_it_is() -> None:
    assert join_tab("Ada's phone", "left") == "Ada's phone#left"
