"""The effect of each kind of fact on a task's record, by topic."""
