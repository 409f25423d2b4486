"""The forms in which agents ask for approvals within a task, and in which they are answered."""
