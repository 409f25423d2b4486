"""Three small agents made with the A2A SDK, each a process of its own.

``python -m passerelle.demo.peers.<name> --port N`` starts one on loopback (0 = a free port) and
prints one JSON line with its URL. They know nothing of the gateway.
"""

import os

# Before the SDK is imported: it would trace every method of its own.
os.environ.setdefault("OTEL_INSTRUMENTATION_A2A_SDK_ENABLED", "false")
