"""The demo: a real server and ``specctl bench`` on it, under a load that changes."""
