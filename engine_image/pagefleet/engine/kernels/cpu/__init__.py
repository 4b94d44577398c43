"""Kernels in C for x86-64 CPUs, one source for several instruction sets, each with a twin in torch."""
