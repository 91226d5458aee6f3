"""Kernels of our own in C++, for what is quicker so on a CPU; all of it has a path in PyTorch too."""
