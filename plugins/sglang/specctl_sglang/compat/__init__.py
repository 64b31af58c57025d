"""The only modules that import SGLang. ``adapter`` lets what they rely on be checked by its source."""
