"""The demo: sample peers, and the story that is played and checked on them."""
