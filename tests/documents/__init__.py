"""The documentation test: runs the commands of a page as written, in order, on a clean system."""
