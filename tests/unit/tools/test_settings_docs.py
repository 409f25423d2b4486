"""The drawn list of settings has every setting, under its section, with its default."""

from collections.abc import Iterator
from typing import get_args, get_origin

from passerelle.gateway.settings.callers import GrantSettings
from passerelle.gateway.settings.model import Settings
from passerelle.gateway.settings.retention import OutcomeAges
from passerelle.gateway.settings.section import Section
from tools.settings_docs import render_settings

MANY: dict[object, str] = {tuple: "[]", dict: ".NAME"}


def find_section(annotation: object) -> type[Section] | None:
    """The section in an annotation: bare, optional, or in a tuple."""
    if isinstance(annotation, type) and issubclass(annotation, Section):
        return annotation
    return next(filter(None, (find_section(one) for one in get_args(annotation))), None)


def list_sections(prefix: str, section: type[Section]) -> Iterator[tuple[str, list[str]]]:
    """Heading and settings of every section of the models, those that have a short form left out."""
    for name, field in section.model_fields.items():
        below = find_section(field.annotation)
        if below is None or below in {GrantSettings, OutcomeAges}:
            continue
        heading = f"{prefix}{name}{MANY.get(get_origin(field.annotation), '')}"
        yield f"`{heading}`", list_names(below)
        yield from list_sections(f"{heading}.", below)


def list_names(section: type[Section]) -> list[str]:
    """Names as in a file: some of them are keywords of Python."""
    return [field.alias or name for name, field in section.model_fields.items()]


def read_rows() -> dict[str, list[str]]:
    """The names of the settings in each section of the text."""
    parts = render_settings().split("\n## ")[1:]
    return {
        part.split("\n", 1)[0]: [
            line.split("`")[1] for line in part.splitlines() if line.startswith("| `")
        ]
        for part in parts
    }


def test_every_section_lists_exactly_its_settings() -> None:
    wanted = {"Top level": list_names(Settings), **dict(list_sections("", Settings))}
    assert len(wanted) > 5
    assert read_rows() == wanted


def test_defaults_are_written_as_in_a_file() -> None:
    text = render_settings()
    assert "| `total` | duration | `30m` |" in text
    assert "| `durability` | `everysec`, `always` | `everysec` |" in text
    assert "| `issuer` | text | required |" in text
