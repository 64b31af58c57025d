"""What is compiled with the first batch serves all that follow, wherever in memory an engine keeps them."""

from __future__ import annotations

import pytest

pytest.importorskip("triton")

from specctl_kernels.verify_tree.kernel import OF_ENGINE, greedy_tree_kernel, tree_kernel


@pytest.mark.parametrize("kernel", [greedy_tree_kernel, tree_kernel], ids=["greedy", "sampled"])
def test_no_address_of_the_engines_is_a_kernel_of_its_own(kernel):
    found = [parameter for parameter in kernel.params if parameter.name in OF_ENGINE]
    assert len(found) >= 4
    assert all(parameter.do_not_specialize_on_alignment for parameter in found)


def test_every_name_is_a_parameter():
    assert set(OF_ENGINE) <= {parameter.name for parameter in tree_kernel.params}
