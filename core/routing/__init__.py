"""Which agent gets a task that its caller left to the gateway: profile, candidates, decision. Pure (EXT-5, PRS-10)."""
