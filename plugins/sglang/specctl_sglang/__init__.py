"""The SGLang plugin, with the same parts as ``specctl_vllm``."""
