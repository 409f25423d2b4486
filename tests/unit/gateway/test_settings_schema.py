"""The shipped JSON Schema is the one of the models."""

import json
from importlib.resources import files
from typing import Any

from passerelle.gateway.settings.schema import SchemaPlace
from passerelle.gateway.settings.source import render_schema


def test_shipped_schema_is_the_generated_one() -> None:
    shipped = files("passerelle.gateway").joinpath("settings.schema.json").read_text("utf-8")
    assert shipped == render_schema()


def test_no_section_of_the_schema_takes_unknown_keys() -> None:
    schema: dict[str, Any] = json.loads(render_schema())
    for section in (schema, *schema["$defs"].values()):
        assert section.get("type") != "object" or section["additionalProperties"] is False


def test_defaults_have_the_form_of_the_configuration_file() -> None:
    schema: dict[str, Any] = json.loads(render_schema())
    assert schema["$defs"]["AgentTimeout"]["properties"]["total"]["default"] == "30m"


def test_shape_finds_names_through_lists_and_optional_sections() -> None:
    auth = SchemaPlace.root().descend(("agents", 3, "auth"))
    assert auth is not None
    assert auth.names() == ("bearer_env", "bearer_file", "api_key", "basic", "oauth2")
    assert SchemaPlace.root().descend(("agents", 0, "nothing")) is None
