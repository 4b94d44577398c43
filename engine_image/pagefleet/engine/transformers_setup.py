"""How this process uses transformers: silent, and without what it would load for models that span machines."""

import torch


def prepare_transformers() -> None:
    """Set transformers up before anything else of it is used; a second call changes nothing.

    It draws no progress bars and gives no warnings: the engine reports its stages itself. It takes torch for a build
    without `torch.distributed`, for good: a configuration's classes would load distributed tensors, and sympy for
    them, a fifth of the CPU time of a core's start and 50 MB, and no model of ours spans machines.
    """
    from transformers.utils import is_torch_distributed_available, logging

    logging.disable_progress_bar()
    logging.set_verbosity_error()
    is_available = torch.distributed.is_available
    torch.distributed.is_available = lambda: False
    try:
        is_torch_distributed_available()  # remembers what it hears first
    finally:
        torch.distributed.is_available = is_available
