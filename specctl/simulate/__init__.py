"""One server on virtual time, steered by the daemon's own controller or by its rivals."""
