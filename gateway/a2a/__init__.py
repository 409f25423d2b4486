"""The A2A 1.0 face: JSON-RPC and HTTP+JSON of every configured agent, and their cards."""
