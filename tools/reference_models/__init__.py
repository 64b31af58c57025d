"""Build a small target, an EAGLE-3 head and a P-EAGLE head on this machine, for the tests and the demo."""
