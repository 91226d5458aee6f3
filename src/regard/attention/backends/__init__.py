"""The kernels behind :func:`regard.attention.attend`. Each serves what its docstring says and refuses the rest."""
