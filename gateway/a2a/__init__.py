"""The A2A face: JSON-RPC and HTTP+JSON for every configured agent, and the agent cards."""
