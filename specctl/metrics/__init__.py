"""The daemon's own Prometheus metrics."""
