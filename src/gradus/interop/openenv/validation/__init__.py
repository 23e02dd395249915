"""OpenEnv's validation (RFC 008): graders for its semantic checks, and the statistical ones that it leaves to operators."""
