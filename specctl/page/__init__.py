"""The page that a daemon serves beside its metrics."""
