"""The demo: a real server, the daemon beside it, a load that changes; off, fixed and specctl compared."""
