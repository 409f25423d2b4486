"""Each example is played as its page says, with real processes."""
