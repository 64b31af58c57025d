"""Engine-free draft structures. Import the module you need; only ``suffix_index`` needs numba."""
