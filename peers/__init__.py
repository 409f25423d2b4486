"""Everything that calls agents: bindings, connections, cards, circuit breakers."""
