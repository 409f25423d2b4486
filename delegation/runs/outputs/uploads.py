"""Content that an agent has uploaded, as a file of its artifact: ``fetcher`` for addresses of our own.

A frame of a channel is bounded, and what is large keeps others waiting there. So an agent may put it beside the socket
first, with the same credential. A part with its address is a file like any other: the task is not completed before its
copy is here (I5), and who may read the task may read it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from passerelle.core.agent_name import find_base
from passerelle.core.ports.uploads import UPLOADED
from passerelle.delegation.runs.outputs.fetcher import Fetched, Gone

if TYPE_CHECKING:
    from passerelle.core.ports.uploads import Uploads


async def fetch_upload(uploads: Uploads, agent: str, url: str) -> Fetched | Gone:
    """The file at an address of ours, if this very agent has uploaded it.

    Raises:
        StoreUnavailable: nobody knows.
    """
    found = await uploads.get(find_base(agent), url.removeprefix(UPLOADED))
    if found is None:
        return Gone("its agent has not uploaded it, or more than a day ago")
    return Fetched(found.content, found.media_type, len(found.content), is_cut=False)
