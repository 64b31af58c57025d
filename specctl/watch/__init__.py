"""What there is to watch of a target: one view for the page, ``specctl top`` and the metrics."""
