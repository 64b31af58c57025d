"""The only modules that touch vLLM's internals.

``canary`` checks what they rely on; each patch states its reason where it is made.
"""
