"""Which device and number format the engine computes in."""

from typing import Any

import torch

from pagefleet.engine.errors import StartupError

DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32}


def choose_device(name: str) -> torch.device:
    """Return the device; `auto` is the first GPU, else the CPU. Raises StartupError."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if name == "cuda" and not torch.cuda.is_available():
        raise StartupError("--device cuda: no usable GPU is visible to this process; use --device cpu")
    if name not in ("cpu", "cuda"):
        raise StartupError(f"--device {name} is unknown; use auto, cpu or cuda")
    return torch.device(name)


def named_dtype(flag: str, name: str) -> torch.dtype:
    """Return the dtype that a flag names; raises StartupError."""
    if name not in DTYPES:
        raise StartupError(f"{flag} {name} is not supported; use auto, {' or '.join(DTYPES)}")
    return DTYPES[name]


def choose_dtype(name: str, config: Any, device: torch.device, *, is_quantized: bool) -> torch.dtype:
    """Return the compute dtype: what the flag says, else the checkpoint's, as far as the device is fast in it.

    A checkpoint in float16 or in a quantized format counts as bfloat16. Raises StartupError.
    """
    if name != "auto":
        return named_dtype("--dtype", name)
    stored = getattr(config, "dtype", None)
    if stored == torch.float32 and not is_quantized:
        return torch.float32
    if device.type == "cpu" and not has_fast_bfloat16():
        return torch.float32
    return torch.bfloat16


def has_fast_bfloat16() -> bool:
    """Tell whether this CPU multiplies bfloat16; without, it is emulated and slower than float32."""
    capabilities = torch.cpu.get_capabilities()
    return bool(capabilities.get("avx512_bf16") or capabilities.get("amx_bf16"))
