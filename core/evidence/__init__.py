"""Evidence: bundles of facts that a third party can verify without trusting this gateway (CMD-20, CMD-26, EVC-15)."""
