"""Ask a Prometheus over its HTTP API: the only module that speaks to one."""

import http.client
import json
import math
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pagefleet.cli.dashboards.answers import INSTANT_KINDS, Answer, AnsweredPanel, Series, fill_in
from pagefleet.cli.dashboards.board import Panel

TIMEOUT_S = 30.0
MOST_BYTES = 64 * 2**20
"""Of an answer; a board's query brings some kilobytes."""


class PrometheusError(Exception):
    """A sentence that says why there is no answer."""


@dataclass(frozen=True)
class TimeRange:
    """From when to when, in seconds since 1970, and the distance of two points."""

    start_s: float
    end_s: float
    step_s: int


@dataclass(frozen=True)
class Prometheus:
    """A server at a base URL such as http://127.0.0.1:9090."""

    url: str

    def answer_panel(
        self, panel: Panel, span: TimeRange, choices: Mapping[str, str], *, rate_interval_s: int
    ) -> AnsweredPanel:
        """Run all queries of a panel; raises PrometheusError."""
        answers = []
        for query in panel.queries:
            expression = fill_in(query.expression, choices, rate_interval_s=rate_interval_s)
            if panel.kind in INSTANT_KINDS:
                series = self.query(expression, span.end_s)
            else:
                series = self.query_range(expression, span)
            answers.append(Answer(query, series))
        return AnsweredPanel(panel, answers)

    def query(self, expression: str, time_s: float) -> tuple[Series, ...]:
        """Return the value of each series at a time; raises PrometheusError."""
        found = self._get("query", {"query": expression, "time": f"{time_s:.3f}"})
        return tuple(_series(each["metric"], [each["value"]]) for each in found)

    def query_range(self, expression: str, span: TimeRange) -> tuple[Series, ...]:
        """Return the values of each series over a time; raises PrometheusError."""
        found = self._get(
            "query_range",
            {
                "query": expression,
                "start": f"{span.start_s:.3f}",
                "end": f"{span.end_s:.3f}",
                "step": str(span.step_s),
            },
        )
        return tuple(_series(each["metric"], each["values"]) for each in found)

    def _get(self, what: str, parameters: Mapping[str, str]) -> list[dict[str, Any]]:
        url = f"{self.url.rstrip('/')}/api/v1/{what}?{urllib.parse.urlencode(parameters)}"
        try:
            with urllib.request.urlopen(url, timeout=TIMEOUT_S) as answer:  # noqa: S310 - the command checks the scheme
                body = json.loads(answer.read(MOST_BYTES))
            found: list[dict[str, Any]] = body["data"]["result"]
        except urllib.error.HTTPError as error:
            said = error.read(1000).decode(errors="replace").strip()
            raise PrometheusError(f"{self.url} refuses a query with HTTP {error.code}: {said}") from error
        except (OSError, http.client.HTTPException) as error:
            reason = getattr(error, "reason", None) or error
            raise PrometheusError(f"{self.url} does not answer ({reason})") from error
        except (ValueError, KeyError, TypeError) as error:
            raise PrometheusError(f"{self.url} does not answer as a Prometheus does") from error
        return found


def _series(labels: Mapping[str, str], points: list[tuple[float, str]]) -> Series:
    values = [float(value) for _, value in points]
    known = [math.isfinite(value) for value in values]
    return Series(
        labels,
        tuple(time_s for (time_s, _), is_known in zip(points, known, strict=True) if is_known),
        tuple(value for value, is_known in zip(values, known, strict=True) if is_known),
    )
