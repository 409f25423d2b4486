"""Evidence: bundles of facts that somebody can check who trusts nobody here (CMD-20, CMD-26, EVC-15)."""
