"""The other side of every equality: transformers, one prompt at a time; tokens are greedy ones in float32."""

from functools import cache
from pathlib import Path
from typing import Any

import torch

from pagefleet.engine.gguf_conversion import convert
from pagefleet.engine.model_source import resolve_model
from tests.support.models import smollm2


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
def reference_beams(
    folder: Path | str,
    prompt: list[int],
    width: int,
    *,
    tokens: int,
    end: int | None,
    length_penalty: float = 1.0,
    early_stopping: Any = False,
) -> list[list[int]]:
    """Return the best beams, best first, cut behind the end token; None for `end` lets nothing end them."""
    model = reference_model(str(folder))
    model.generation_config.eos_token_id = end
    generated = model.generate(
        torch.tensor([prompt]),
        attention_mask=torch.ones(1, len(prompt)),
        max_new_tokens=tokens,
        do_sample=False,
        pad_token_id=0,
        num_beams=width,
        num_return_sequences=width,
        **({"length_penalty": length_penalty, "early_stopping": early_stopping} if width > 1 else {}),
    )
    outputs: list[list[int]] = generated[:, len(prompt) :].tolist()
    cuts = [output.index(end) + 1 if end in output else tokens for output in outputs]
    return [output[:cut] for output, cut in zip(outputs, cuts, strict=True)]


def smollm2_folder() -> Path:
    """Return the folder of SmolLM2-135M-Instruct as the engine converts it; skips the test where it is missing."""
    return convert(resolve_model(smollm2(), lambda _: None)).folder


@torch.inference_mode()
def reference_logits(folder: Path | str, prompt: list[int], dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Return the float32 [tokens, vocabulary] logits of one prompt."""
    logits: torch.Tensor = reference_model(str(folder), dtype)(torch.tensor([prompt])).logits[0].float()
    return logits
