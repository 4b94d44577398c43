"""Whether Triton's kernels run on a device; without the package triton this module can be imported too."""

import importlib.util
import os

import torch

OLDEST_CAPABILITY = (8, 0)
"""The first with bfloat16 and asynchronous copies."""


def device_refusal(device: torch.device, *, kernel: str) -> str | None:
    """Return why a kernel, which the sentence names, cannot run on a device, or None."""
    if importlib.util.find_spec("triton") is None:
        return f"the Triton {kernel} kernel needs the package triton; install pagefleet[cuda]"
    if device.type == "cpu":
        if is_interpreted():
            return None
        return (
            f"the Triton {kernel} kernel computes on a GPU; on the CPU it runs only for tests, with TRITON_INTERPRET=1"
        )
    if device.type != "cuda" or not torch.cuda.is_available():
        return f"the Triton {kernel} kernel needs a usable NVIDIA GPU, which {device} is not"
    if is_interpreted():
        return f"the Triton {kernel} kernel would run in Python: unset TRITON_INTERPRET"
    capability = torch.cuda.get_device_capability(device)
    if capability < OLDEST_CAPABILITY:
        return (
            f"the Triton {kernel} kernel needs compute capability {'.'.join(map(str, OLDEST_CAPABILITY))} or newer, "
            f"not {'.'.join(map(str, capability))}"
        )
    return None


def is_interpreted() -> bool:
    """Tell whether Triton runs its kernels in Python, on the CPU."""
    return os.environ.get("TRITON_INTERPRET") == "1"
