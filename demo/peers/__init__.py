"""Three small agents built with the A2A SDK, each in its own process.

``python -m passerelle.demo.peers.<name> --port N`` starts one on loopback (0 = a free port) and
prints one JSON line with its URL. They do not depend on the gateway.
"""

import os

# set before the SDK is imported: otherwise it traces each of its methods
os.environ.setdefault("OTEL_INSTRUMENTATION_A2A_SDK_ENABLED", "false")
