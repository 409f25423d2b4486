"""The life of a task: its machine, record, fold, commands and requests."""
