"""Another plugin of vLLM's, which replaces a function that ours would wrap; on PYTHONPATH of a server."""

from vllm.v1.worker.gpu_model_runner import GPUModelRunner


def register():
    stock = GPUModelRunner.propose_draft_token_ids
    if stock.__module__ == __name__:
        return

    def propose_draft_token_ids(self, *args, **kwargs):
        return stock(self, *args, **kwargs)

    GPUModelRunner.propose_draft_token_ids = propose_draft_token_ids
