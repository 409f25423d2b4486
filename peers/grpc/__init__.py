"""Calls to agents over gRPC, and the protobuf forms for both directions."""
