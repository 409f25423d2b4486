"""The background duties of an instance: leases, relay, takeover, due rows, sweeps."""
