"""Tables out: apply, and read back what holds."""
