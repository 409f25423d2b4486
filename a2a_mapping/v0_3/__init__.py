"""Data of A2A 0.3, to and from the canonical 1.0 JSON. Pure, in both directions.

0.3 has two spellings: that of its JSON-RPC binding, which tells kinds apart by a member ``kind``, and that of its
protobuf, which HTTP+JSON and gRPC carry. What 0.3 has no word for is left out on the way there (file name and media
type of a text part); members that nobody here knows pass.
"""
