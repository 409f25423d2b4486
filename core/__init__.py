"""Facts, states and commands: pure, without I/O, clock or randomness."""
