"""The control plane: commands and read models over tasks and sessions."""
