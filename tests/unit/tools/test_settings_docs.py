"""The drawn list of settings has every setting, under its section, with its default."""

from typing import get_args

from passerelle.gateway.settings import Settings
from passerelle.gateway.settings_section import Section
from tools.settings_docs import render_settings


def find_sections(section: type[Section], path: str) -> dict[str, type[Section]]:
    """Each section below ``section`` under the heading that it should have, in any order."""
    found: dict[str, type[Section]] = {f"`{path}`" if path else "Top level": section}
    for name, field in section.model_fields.items():
        text = str(field.annotation)
        for inner in list_classes(field.annotation):
            step = f"{name}[]" if "tuple[" in text else name
            found |= find_sections(inner, f"{path}.{step}" if path else step)
    return found


def list_classes(annotation: object) -> list[type[Section]]:
    """The sections in an annotation, however deep."""
    if isinstance(annotation, type) and issubclass(annotation, Section):
        return [annotation]
    return [found for inner in get_args(annotation) for found in list_classes(inner)]


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
    wanted = {
        heading: list(section.model_fields)
        for heading, section in find_sections(Settings, "").items()
    }
    assert read_rows() == wanted


def test_defaults_are_written_as_in_a_file() -> None:
    text = render_settings()
    assert "| `total` | duration | `30m` |" in text
    assert "| `durability` | `everysec`, `always` | `everysec` |" in text
    assert "| `url` | text | required |" in text
