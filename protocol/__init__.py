"""What server and clients share: frames of channels, their codec, cursors, close codes; helpers for asyncio tasks."""
