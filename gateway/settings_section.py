"""What every section of ``passerelle.yaml`` is made of."""

from __future__ import annotations

from typing import Annotated, Final, TypeAlias

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, HttpUrl, TypeAdapter

NAME_PATTERN: Final = r"^[a-z0-9][a-z0-9_-]{0,62}$"
NAME_RULE: Final = "1 to 63 of a-z, 0-9, _ and -, with a letter or digit first"

Name: TypeAlias = Annotated[str, Field(pattern=NAME_PATTERN)]


def _check_url(text: str) -> str:
    url = TypeAdapter(HttpUrl).validate_python(text)
    if url.username or url.password:
        raise ValueError("holds no credentials: name a variable in auth.bearer_env instead")
    return text.rstrip("/")


WebUrl: TypeAlias = Annotated[
    str, AfterValidator(_check_url), Field(json_schema_extra={"format": "uri"})
]


class Section(BaseModel):
    """A part of the file: immutable, and nothing unknown passes."""

    model_config = ConfigDict(frozen=True, extra="forbid")
