"""How peers ask in the middle of a task, and how each of them wants to be answered."""
