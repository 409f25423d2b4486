"""The demo: sample peers, and the story that the demo plays and checks on them."""
