"""What kernels that sample share: random numbers, options, the mass of a row, what its cuts keep."""
