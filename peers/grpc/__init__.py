"""Calls to agents over gRPC, and the forms that both directions share."""
