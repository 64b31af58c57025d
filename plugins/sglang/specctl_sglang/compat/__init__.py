"""The only modules that touch SGLang's internals.

``canary`` checks what they rely on; each patch states its reason where it is made.
"""
