"""``specctl top``: servers live in a terminal."""
