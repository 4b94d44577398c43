"""Follow requests from arrival to end, and count once what their clients can see of them."""

from pagefleet.engine.metrics import EngineMetrics


class RequestRecord:
    """Follow one request from arrival to end: it is counted once, however many choices it has.

    Every choice of an accepted request ends in exactly one `finish`, and the last of them ends the request.
    """

    def __init__(self, metrics: EngineMetrics, *, arrival_s: float, prompt_tokens: int, choices: int) -> None:
        self.metrics = metrics
        self._arrival_s = arrival_s
        self._prompt_tokens = prompt_tokens
        self._first_s: float | None = None
        self._last_s = arrival_s
        self._tokens = 0
        self._longest_choice = 0
        self._reasons: list[str] = []
        self.choices = [ChoiceRecord(self) for _ in range(choices)]

    def output(
        self, token_count: int, last_s: float | None, *, queue_time_s: float | None, prefill_time_s: float | None
    ) -> float:
        """Count one output of a choice whose last one came at `last_s`, and return the time."""
        now = self.metrics.clock()
        if self._first_s is None:
            self._first_s = now
            self.metrics.observe("time_to_first_token_seconds", now - self._arrival_s)
            if queue_time_s is not None:
                self.metrics.observe("request_queue_time_seconds", queue_time_s)
            if prefill_time_s is not None:
                self.metrics.observe("request_prefill_time_seconds", prefill_time_s)
        elif last_s is not None:
            self.metrics.observe("inter_token_latency_seconds", now - last_s)
        self._last_s = now
        self._tokens += token_count
        self.metrics.count_generated(token_count, now)
        return now

    def finish(self, reason: str, choice_tokens: int) -> None:
        """Count the end of a choice, and with the last that of the request, under the gravest of their reasons.

        Only an answer that was not cut off enters the histograms of whole requests.
        """
        self._reasons.append(reason)
        self._longest_choice = max(self._longest_choice, choice_tokens)
        if len(self._reasons) < len(self.choices):
            return
        reason = max(self._reasons, key=_GRAVITY.index)
        self.metrics.increment("request_success", labels=(reason,))
        if reason in ("stop", "length"):
            self.metrics.observe("e2e_request_latency_seconds", self._last_s - self._arrival_s)
            self.metrics.observe("request_prompt_tokens", self._prompt_tokens)
            self.metrics.observe("request_generation_tokens", self._tokens)
            self.metrics.observe("request_max_num_generation_tokens", self._longest_choice)
            if self._first_s is not None:
                self.metrics.observe("request_decode_time_seconds", self._last_s - self._first_s)


_GRAVITY = ("stop", "length", "abort", "error")


class ChoiceRecord:
    """Follow one choice of a request."""

    def __init__(self, request: RequestRecord) -> None:
        self._request = request
        self._first_s: float | None = None
        self._first_tokens = 0
        self._last_s: float | None = None
        self._tokens = 0
        self._is_finished = False

    def output(self, token_count: int, *, queue_time_s: float | None, prefill_time_s: float | None) -> None:
        """Count one output of `token_count` tokens, which is one piece of a stream.

        The request's first gives the time to first token; every later one of a choice gives one inter-token latency,
        however many tokens it carries, because that is the gap that a client sees.
        """
        if token_count:
            self._last_s = self._request.output(
                token_count, self._last_s, queue_time_s=queue_time_s, prefill_time_s=prefill_time_s
            )
            if self._first_s is None:
                self._first_s, self._first_tokens = self._last_s, token_count
            self._tokens += token_count

    def finish(self, reason: str) -> None:
        """Count the end, once."""
        if self._is_finished:
            return
        self._is_finished = True
        metrics = self._request.metrics
        metrics.count_finished(self._tokens)
        # Whatever ended it: a client that gives up does so because the answer is slow.
        if self._first_s is not None and self._last_s is not None and self._tokens > self._first_tokens:
            mean_gap_s = (self._last_s - self._first_s) / (self._tokens - self._first_tokens)
            metrics.observe("request_time_per_output_token_seconds", mean_gap_s)
        self._request.finish(reason, self._tokens)


def start_request(
    metrics: EngineMetrics, *, arrival_s: float, prompt_tokens: int, choices: int = 1
) -> list[ChoiceRecord]:
    """Count a request that the core has taken, and return the record of each of its choices."""
    metrics.count_started(prompt_tokens=prompt_tokens, choices=choices)
    return RequestRecord(metrics, arrival_s=arrival_s, prompt_tokens=prompt_tokens, choices=choices).choices
