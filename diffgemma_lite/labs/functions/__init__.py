"""Functions that run: signature and docstring -> body, judged by execution."""
