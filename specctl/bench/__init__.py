"""``specctl bench``: an A/B comparison of speculative-decoding settings on a running server."""
