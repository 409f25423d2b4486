"""The command ``passerelle``: a client over HTTP, and the start of what runs in this process."""
