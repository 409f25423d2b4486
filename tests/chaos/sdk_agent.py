"""The sample agent ``report``, built with the SDK, with another address on its card: ``… PORT URL``."""

from __future__ import annotations

import argparse
import logging
import sys

import orjson
import uvicorn

from passerelle.demo.peers.report import ReportAgent
from passerelle.demo.peers.serving import HOST, make_app
from passerelle.gateway.server import bind


def main() -> None:
    """Serves until it is killed."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.sdk_agent", description=__doc__)
    parser.add_argument("port", type=int)
    parser.add_argument("url")
    flags = parser.parse_args()
    logging.getLogger("a2a").setLevel(logging.CRITICAL)
    listener = bind(HOST, flags.port)
    sys.stdout.write(orjson.dumps({"agent": "report", "url": listener.url}).decode() + "\n")
    sys.stdout.flush()
    app = make_app(ReportAgent(), f"{flags.url}/")
    config = uvicorn.Config(app, log_level="error", access_log=False)
    uvicorn.Server(config).run(sockets=[listener.socket])


if __name__ == "__main__":
    main()
