"""A plugin for vLLM: the two collectives by which ranks share experts, which vLLM has for GPUs alone."""

from __future__ import annotations


def register() -> None:
    import torch
    import torch.distributed as dist
    from vllm.distributed.device_communicators.cpu_communicator import CpuCommunicator

    def gathered(self: CpuCommunicator, tensor: torch.Tensor, sizes: list[int]) -> torch.Tensor:
        """[own, ...] of each rank -> [sum(sizes), ...]; gloo gathers equal shapes only."""
        padded = tensor.new_zeros(max(sizes), *tensor.shape[1:])
        padded[: len(tensor)] = tensor
        parts = [torch.empty_like(padded) for _ in sizes]
        dist.all_gather(parts, padded, group=self.cpu_group)
        return torch.cat([part[:size] for part, size in zip(parts, sizes, strict=True)])

    def all_gatherv(self, input_, dim=0, sizes=None):  # type: ignore[no-untyped-def]
        assert dim == 0
        tensors = input_ if isinstance(input_, list) else [input_]
        sizes = sizes or [len(tensors[0])] * self.world_size
        found = [gathered(self, tensor, sizes) for tensor in tensors]
        return found if isinstance(input_, list) else found[0]

    def reduce_scatterv(self, input_, dim=-1, sizes=None):  # type: ignore[no-untyped-def]
        assert dim == 0
        sizes = sizes or [len(input_) // self.world_size] * self.world_size
        total = input_.clone()
        dist.all_reduce(total, group=self.cpu_group)
        rank = dist.get_rank(self.cpu_group)
        first = sum(sizes[:rank])
        return total[first : first + sizes[rank]].clone()

    CpuCommunicator.all_gatherv = all_gatherv
    CpuCommunicator.reduce_scatterv = reduce_scatterv
