"""What this engine does not do: a field that it lacks passes only with a value that asks for nothing."""

from typing import Any

import pydantic_core

from pagefleet.engine.errors import RequestRefused

OFF: tuple[Any, ...] = (None,)
UNSUPPORTED: dict[str, tuple[Any, ...]] = {
    "best_of": (None, 1),
    "tools": (None, []),
    "tool_choice": (None, "none", "auto"),
    "parallel_tool_calls": (None, True, False),
    "functions": (None, []),
    "function_call": (None, "none", "auto"),
    "response_format": (None, {"type": "text"}),
    "reasoning_effort": OFF,
    "modalities": (None, ["text"]),
    "audio": OFF,
    "prediction": OFF,
    "store": (None, False),
    "metadata": (None, {}),
    "service_tier": (None, "auto", "default"),
    "verbosity": OFF,
    "web_search_options": OFF,
    "suffix": OFF,
    "structured_outputs": OFF,
    "guided_json": OFF,
    "guided_regex": OFF,
    "guided_choice": (None, []),
    "guided_grammar": OFF,
    "spaces_between_special_tokens": (None, True, False),  # these tokenizers put none, whatever is asked
    "documents": (None, []),
    "kv_transfer_params": OFF,
    "repetition_detection": OFF,
    "mm_processor_kwargs": OFF,
    "stream_interval": (None, 1),
    "prompt_embeds": OFF,
    "prompt_cache_key": OFF,
    "prompt_cache_retention": OFF,
    "safety_identifier": OFF,
}
"""Fields of OpenAI's and vLLM's surface that are not supported, with the values that ask for nothing."""

UNSUPPORTED_IN_MESSAGE: dict[str, tuple[Any, ...]] = {
    "tool_calls": (None, []),
    "tool_call_id": OFF,
    "function_call": OFF,
    "refusal": OFF,
    "audio": OFF,
    "annotations": (None, []),
    "reasoning": OFF,
    "reasoning_content": OFF,
}


def drop_switched_off(data: dict[str, Any], unsupported: dict[str, tuple[Any, ...]], where: str) -> dict[str, Any]:
    """Remove unsupported fields whose value asks for nothing; raises RequestRefused for any other value."""
    kept = {}
    for name, value in data.items():
        if name not in unsupported:
            kept[name] = value
        elif not any(type(value) is type(off) and value == off for off in unsupported[name]):
            raise RequestRefused(
                f"{where}{name} is not supported by this engine, and {_shown(value)} asks for it; "
                f"leave it out{_alternative(unsupported[name])}",
                parameter=f"{where}{name}",
                code="unsupported_parameter",
            )
    return kept


def _alternative(off_values: tuple[Any, ...]) -> str:
    given = next((off for off in off_values if off is not None), None)
    return "" if given is None else f" or send {_shown(given)}"


def _shown(value: Any) -> str:
    return pydantic_core.to_json(value)[:60].decode(errors="replace")
