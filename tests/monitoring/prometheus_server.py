"""A real Prometheus that scrapes what a test names: `with PrometheusServer(folder, targets) as prometheus: ...`."""

import json
import re
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import yaml

from tests.monitoring.programs import prometheus_program

SCRAPE_INTERVAL_S = 1
START_TIMEOUT_S = 30.0


@dataclass(frozen=True)
class Target:
    """What is scraped, and the labels that a ServiceMonitor would give it."""

    url: str
    labels: Mapping[str, str] = field(default_factory=dict)


class PrometheusServer:
    """One server on a free port of 127.0.0.1, with its data in a folder of the test."""

    def __init__(self, folder: Path, targets: Sequence[Target], *, rules: Path | None = None) -> None:
        config = folder / "prometheus.yaml"
        config.write_text(yaml.safe_dump(_configuration(targets, rules)))
        self._log = folder / "prometheus.log"
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [
                    prometheus_program("prometheus"),
                    f"--config.file={config}",
                    f"--storage.tsdb.path={folder / 'data'}",
                    "--web.listen-address=127.0.0.1:0",
                ],
                stdout=log,
                stderr=log,
            )
        self.url = ""

    def wait_ready(self) -> Self:
        """Wait until it answers."""
        end_s = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < end_s and self._process.poll() is None:
            said = self._log.read_text()
            if "Server is ready" in said and (found := re.search(r"Listening on\" address=(127\.0\.0\.1:\d+)", said)):
                self.url = f"http://{found[1]}"
                return self
            time.sleep(0.05)
        raise AssertionError(f"Prometheus did not start: {self._log.read_text()[-2000:]}")

    def query(self, expression: str) -> list[dict[str, Any]]:
        """Return the series that an expression brings now; fails where it is no PromQL."""
        found: list[dict[str, Any]] = self._get("query", query=expression)["result"]
        return found

    def rules(self) -> list[dict[str, Any]]:
        """Return the loaded rules with their health."""
        return [rule for group in self._get("rules")["groups"] for rule in group["rules"]]

    def wait_scraped(self, expression: str, timeout_s: float = 20.0) -> None:
        """Wait until an expression brings something."""
        end_s = time.monotonic() + timeout_s
        while not self.query(expression):
            assert time.monotonic() < end_s, f"nothing for {expression}; targets: {self._get('targets')}"
            time.sleep(0.1)

    def _get(self, what: str, **parameters: str) -> Any:
        url = f"{self.url}/api/v1/{what}?{urllib.parse.urlencode(parameters)}"
        try:
            with urllib.request.urlopen(url, timeout=20) as answer:
                return json.load(answer)["data"]
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{parameters}: {error.read().decode()}") from error

    def __enter__(self) -> Self:
        return self.wait_ready()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.wait()


def _configuration(targets: Sequence[Target], rules: Path | None) -> dict[str, Any]:
    jobs = []
    for number, target in enumerate(targets):
        address = urllib.parse.urlsplit(target.url)
        jobs.append(
            {
                "job_name": f"target-{number}",
                "honor_labels": True,
                "metrics_path": address.path or "/metrics",
                "static_configs": [{"targets": [address.netloc], "labels": dict(target.labels)}],
            }
        )
    timing = {"scrape_interval": f"{SCRAPE_INTERVAL_S}s", "evaluation_interval": f"{SCRAPE_INTERVAL_S}s"}
    return {"global": timing, "scrape_configs": jobs, "rule_files": [str(rules)] if rules else []}
