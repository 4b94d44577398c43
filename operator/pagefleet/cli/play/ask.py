"""Ask one question through the router and write the answer as it comes."""

import json
from collections.abc import Callable

import httpx

LONGEST_ANSWER_TOKENS = 128


class AskFailed(Exception):
    """Say in one sentence why there is no answer, or no whole one."""


async def stream_answer(url: str, model: str, question: str, api_key: str | None, write: Callable[[str], None]) -> None:
    """Stream one greedy chat answer, calling `write` with every piece of text; raises AskFailed."""
    body = {
        "model": model,
        "messages": [{"role": "user", "content": question}],
        "temperature": 0,
        "max_tokens": LONGEST_ANSWER_TOKENS,
        "stream": True,
    }
    headers = {"authorization": f"Bearer {api_key}"} if api_key else {}
    try:
        async with (
            httpx.AsyncClient(timeout=httpx.Timeout(None, connect=5.0), trust_env=False) as client,
            client.stream("POST", f"{url}/v1/chat/completions", json=body, headers=headers) as response,
        ):
            if response.status_code != httpx.codes.OK:
                raise AskFailed(_error_message(await response.aread(), response.status_code))
            async for line in response.aiter_lines():
                if line.startswith("data:") and (data := line.removeprefix("data:").strip()) != "[DONE]":
                    write(_text(data))
    except httpx.HTTPError as error:
        raise AskFailed(f"The answer broke off: {error or type(error).__name__}.") from error


def _text(data: str) -> str:
    """Return the text of one streamed chunk; raises AskFailed when it is an error."""
    try:
        chunk = json.loads(data)
        if "error" in chunk:
            raise AskFailed(f"The answer broke off: {chunk['error']['message']}")
        return "".join(choice["delta"].get("content") or "" for choice in chunk["choices"])
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise AskFailed(f"The engine sent what is no chat chunk: {data[:200]}") from error


def _error_message(body: bytes, status: int) -> str:
    try:
        return f"The question was refused ({status}): {json.loads(body)['error']['message']}"
    except (ValueError, LookupError, TypeError):
        return f"The question was refused ({status})."
