"""Attention in Triton, for NVIDIA GPUs; without the package triton only `attention` and `tiles` can be imported."""
