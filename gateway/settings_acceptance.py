"""Settings of what the tasks of an agent must bring before they count as done."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

from pydantic import Field, model_validator

from passerelle.a2a_mapping.acceptance import read_conditions
from passerelle.core.errors import InvalidInput
from passerelle.gateway.settings_section import Section

if TYPE_CHECKING:
    from passerelle.core.wire.json import JsonObject


class WantedArtifact(Section):
    """An artifact that is wanted; all that is said of it must hold of the same one."""

    name: str | None = Field(default=None, min_length=1, description="Its name.")
    media_type: str | None = Field(
        default=None,
        min_length=1,
        serialization_alias="mediaType",
        description="Media type of one of its parts, such as `image/*`.",
    )
    count: int | None = Field(default=None, ge=1, description="How many such artifacts; absent: 1.")


class AcceptanceCondition(Section):
    """One thing that a task must bring: an artifact, data of a form, or the consent of a person."""

    artifact: WantedArtifact | None = Field(
        default=None, description="An artifact is there; beside `schema`: where to look for data."
    )
    schema_: dict[str, Any] | None = Field(
        default=None, alias="schema", description="JSON Schema that some data part fits."
    )
    review: str | None = Field(
        default=None, description="What the owner of the task is asked once the agent is done."
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        try:
            read_conditions([self.to_condition()], "condition")
        except InvalidInput as error:
            raise ValueError(error.reason) from None
        return self

    def to_condition(self) -> JsonObject:
        """The condition as it stands in the record of a task."""
        return self.model_dump(by_alias=True, exclude_none=True)
