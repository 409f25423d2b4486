"""A job as it goes on, read off the stream of jobs, which says what changes when it does.

Over HTTP, so it takes no more than the right to read the job. A gateway that is away for a while is waited for, and the
cursor says what came meanwhile; where that is kept no longer, the job is read anew.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final, Protocol

from passerelle.a2a_mapping.members import object_at, objects_at, text_at
from passerelle.core.errors import CallerError, Forbidden, NotFound, RemoteError, Unauthenticated

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from passerelle.core.wire.json import Json, JsonObject

_STREAM: Final = "/v1/streams/jobs/events"
_WAIT_S: Final = 20
"""The gateway answers within that time, with nothing where nothing has changed."""
_RETRY_S: Final = 1.0


class JobReader(Protocol):
    """Reads the answers of a gateway."""

    def __call__(self, path: str, params: Mapping[str, Json] | None = None, /) -> JsonObject:
        """The answer of a query; raises CallerError or RemoteError."""
        ...


def follow_job(read: JobReader, path: str, patience_s: float) -> Iterator[JsonObject]:
    """The job at ``path`` as it stands, then again with each change; whoever has seen enough stops.

    Raises:
        NotFound: there is no such job, or not any more.
        Forbidden: jobs may not be read.
        RemoteError: the gateway has been away for longer than ``patience_s`` seconds.
    """
    since_s: float | None = None
    cursor, job = "", dict[str, "Json"]()
    while True:
        try:
            if not cursor:
                # The cursor first: what changes in between is told once more.
                begun = text_at(read(_STREAM), "cursor")
                job, cursor = {**read(path)}, begun
                yield job
            page = read(_STREAM, {"after": cursor, "wait": _WAIT_S})
        except RemoteError:
            now_s = time.monotonic()
            since_s = now_s if since_s is None else since_s
            if now_s - since_s > patience_s:
                raise
            time.sleep(_RETRY_S)
            continue
        except CallerError as error:
            if not cursor or isinstance(error, NotFound | Forbidden | Unauthenticated):
                raise
            cursor = ""  # what followed it is kept no longer
            continue
        since_s, cursor = None, text_at(page, "cursor")
        for event in objects_at(page, "events"):
            if event.get("name") == job.get("jobId"):
                if event.get("gone"):
                    raise NotFound("job", text_at(job, "jobId"))
                job = {**job, **object_at(event, "row")}
                yield job
