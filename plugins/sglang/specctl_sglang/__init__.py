"""Placeholder: the SGLang plugin will stand here, with the same parts as ``specctl_vllm``. Nothing yet."""
