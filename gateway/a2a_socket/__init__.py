"""A2A over WebSocket, a custom binding: the JSON-RPC calls, many of them on one socket."""
