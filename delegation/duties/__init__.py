"""The duties of an instance: leases, the relay, takeover, and rows that come due."""
