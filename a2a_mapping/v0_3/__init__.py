"""Data of A2A 0.3, to and from the canonical 1.0 JSON. Pure, in both directions.

0.3 has two forms: that of its JSON-RPC binding, which marks kinds by a member ``kind``, and that of its protobuf, for
HTTP+JSON and gRPC. Data that 0.3 cannot express is left out (file name and media type of a text part); unknown members
pass.
"""
