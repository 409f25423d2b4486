"""Follows a job over the stream of jobs, which reports each change.

Uses HTTP, so the permission to read the job suffices. It waits for an unavailable gateway, and the cursor returns the
changes in between; if those have expired, the job is read again.
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
"""Long-poll timeout: the gateway responds within this time, with no event if nothing changed."""
_RETRY_S: Final = 1.0


class JobReader(Protocol):
    """Reads responses of a gateway."""

    def __call__(self, path: str, params: Mapping[str, Json] | None = None, /) -> JsonObject:
        """Returns the response of a query; raises CallerError or RemoteError."""
        ...


def follow_job(read: JobReader, path: str, patience_s: float) -> Iterator[JsonObject]:
    """Yields the job at ``path`` now and after each change, until the caller stops.

    Raises:
        NotFound: the job does not exist, or was deleted.
        Forbidden: the token may not read jobs.
        RemoteError: the gateway was unavailable for longer than ``patience_s`` seconds.
    """
    since_s: float | None = None
    cursor, job = "", dict[str, "Json"]()
    while True:
        try:
            if not cursor:
                # read the cursor first: a change between the two reads is then reported twice, not lost
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
            cursor = ""  # the events behind it have expired
            continue
        since_s, cursor = None, text_at(page, "cursor")
        for event in objects_at(page, "events"):
            if event.get("name") == job.get("jobId"):
                if event.get("gone"):
                    raise NotFound("job", text_at(job, "jobId"))
                job = {**job, **object_at(event, "row")}
                yield job
