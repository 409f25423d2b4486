"""The channel protocol of server and clients: frames, their codec, cursors, close codes."""
