"""Acceptance survival, step cost, drift: from observations to numbers, or to "unknown" and the reason."""
