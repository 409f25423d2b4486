"""The command ``passerelle``: an HTTP client of a gateway, and the entry point of the gateway itself."""
