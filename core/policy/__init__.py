"""What policy is made of: edited rules, grants, and the requests about both."""
