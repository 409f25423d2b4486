"""Agent cards as data, shipped with the package.

``gateway.json`` is the gateway's own card without ``version`` and ``supportedInterfaces``: both are known only
to the running process. ``examples/echo.json`` is the whole card of a peer, as the gateway finds it, and
``examples/archive-0.3.json`` that of a peer of 0.3; ``examples/archive-served.json`` is what the gateway makes of it.
"""
