"""Log-probabilities in the three forms that clients know: OpenAI's for chats and for texts, vLLM's for prompts."""

from collections.abc import Sequence
from typing import Any

from pagefleet.engine.logprobs import TokenLogprobs
from pagefleet.engine.server.text_reader import TextToken
from pagefleet.engine.tokenizer import Tokenizer


class LogprobFormat:
    """Write scores for one request."""

    def __init__(self, tokenizer: Tokenizer, *, are_tokens_ids: bool = False) -> None:
        self._tokenizer = tokenizer
        self._are_tokens_ids = are_tokens_ids

    def token_name(self, token_id: int) -> str:
        """Return a token's text; one that is no whole text is written as its bytes, so that no two are confused."""
        if self._are_tokens_ids:
            return f"token_id:{token_id}"
        content = self._tokenizer.token_bytes(token_id)
        try:
            return content.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in content)

    def chat(self, tokens: Sequence[TextToken]) -> dict[str, Any]:
        """Return a chat choice's `logprobs`."""
        return {
            "content": [
                {
                    **self._chat_entry(token.token_id, token.scores.logprob),
                    "top_logprobs": [self._chat_entry(*other) for other in token.scores.top],
                }
                for token in tokens
                if token.scores is not None
            ],
            "refusal": None,
        }

    def completion(self, tokens: Sequence[TextToken], top: int) -> dict[str, Any]:
        """Return a completion choice's `logprobs`: the `top` likeliest and the token itself, also if it is not one."""
        return {
            "tokens": [self.token_name(token.token_id) for token in tokens],
            "token_logprobs": [None if token.scores is None else token.scores.logprob for token in tokens],
            "top_logprobs": [
                None
                if token.scores is None
                else {self.token_name(other): logprob for other, logprob in _with_own(token.scores, top)}
                for token in tokens
            ],
            "text_offset": [token.text_offset for token in tokens],
        }

    def prompt(self, scores: Sequence[TokenLogprobs], top: int) -> list[dict[str, Any] | None]:
        """Return `prompt_logprobs`: nothing for the first token, then the `top` likeliest and the token itself."""
        return [None, *({str(token): entry for token, entry in self._ranked(each, top)} for each in scores)]

    def _ranked(self, scores: TokenLogprobs, top: int) -> list[tuple[int, dict[str, Any]]]:
        return [
            (
                token,
                {
                    "logprob": logprob,
                    "rank": scores.rank if token == scores.token_id else place,
                    "decoded_token": self.token_name(token),
                },
            )
            for place, (token, logprob) in enumerate(_with_own(scores, top), start=1)
        ]

    def _chat_entry(self, token_id: int, logprob: float) -> dict[str, Any]:
        content = self._tokenizer.token_bytes(token_id)
        return {"token": self.token_name(token_id), "logprob": logprob, "bytes": list(content)}


def _with_own(scores: TokenLogprobs, top: int) -> list[tuple[int, float]]:
    likeliest = list(scores.top[:top])
    if all(token != scores.token_id for token, _ in likeliest):
        likeliest.append((scores.token_id, scores.logprob))
    return likeliest
