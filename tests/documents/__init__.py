"""The documentation test: commands of a page are run as they are written, in order, where nothing is installed yet."""
