"""The other side of every equality: transformers, one prompt at a time; tokens are greedy ones in float32."""

from functools import cache
from pathlib import Path
from typing import Any

import torch


@cache
def reference_model(folder: str, dtype: torch.dtype = torch.float32) -> Any:
    """Load a folder with transformers."""
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).eval()


@torch.inference_mode()
def reference_tokens(folder: Path | str, prompt: list[int], tokens: int) -> list[int]:
    """Continue a prompt by exactly `tokens` greedy tokens; end tokens do not end it."""
    model = reference_model(str(folder))
    model.generation_config.eos_token_id = None
    generated = model.generate(
        torch.tensor([prompt]), attention_mask=torch.ones(1, len(prompt)), max_new_tokens=tokens, do_sample=False
    )
    continuation: list[int] = generated[0, len(prompt) :].tolist()
    return continuation


@torch.inference_mode()
def reference_logits(folder: Path | str, prompt: list[int], dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Return the float32 [tokens, vocabulary] logits of one prompt."""
    logits: torch.Tensor = reference_model(str(folder), dtype)(torch.tensor([prompt])).logits[0].float()
    return logits
