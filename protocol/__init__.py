"""What server and clients both speak: frames, their codec, cursors, close codes."""
