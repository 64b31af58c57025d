"""The only modules that import vLLM. ``adapter`` lets what they rely on be checked by its source."""
