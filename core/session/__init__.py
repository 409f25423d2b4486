"""Sessions, threads, devices and links: their machines and requests."""
