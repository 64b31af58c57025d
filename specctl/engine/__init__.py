"""The parts of a plugin that run inside an engine process and know no engine.

Both plugins use them; the daemon does not.
"""
