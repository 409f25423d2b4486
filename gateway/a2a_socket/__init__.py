"""A2A over WebSocket, a custom binding: the same calls as over JSON-RPC, many of them on one socket."""
