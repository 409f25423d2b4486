"""Everything that calls an agent: bindings, connections, cards, breakers."""
