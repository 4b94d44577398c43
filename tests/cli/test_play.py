"""`pagefleet play` as a process: questions, edits of the files, signals, and what it leaves behind."""

import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

PROGRAM = Path(__file__).with_name("play_with_fake_engine.py")
PATIENCE_S = 90.0
EXIT_USER_MISTAKE = 2


def service(folder: Path, name: str = "chat", version: str = "v1", replicas: int = 1, extra: str = "") -> str:
    return f"""---
apiVersion: serving.pagefleet.io/v1alpha1
kind: InferenceService
metadata: {{name: {name}}}
spec: {{model: {{uri: "file://{folder}/{version}.json"}}, replicas: {replicas}{extra}}}
"""


class Play:
    """A running `pagefleet play`, its lines as they come, and the engines that it started."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        self.folder = folder
        self.manifest = folder / "manifest.yaml"
        self.process = subprocess.Popen(
            [sys.executable, str(PROGRAM), str(self.manifest), "--port", "0", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path), "TMPDIR": str(folder)},
        )
        self._lines: queue.Queue[str] = queue.Queue()
        self.told: list[str] = []
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self._lines.put(line.rstrip("\n"))

    def wait_for(self, text: str) -> str:
        """Return the next line that holds a text."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                line = self._lines.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                raise AssertionError(f"no line with {text!r} in {self.told}") from None
            self.told.append(line)
            if text in line:
                return line

    def finish(self) -> tuple[int, str]:
        """Wait for the end; return exit code and standard output."""
        assert self.process.stdout is not None
        output = self.process.stdout.read()
        exit_code = self.process.wait(PATIENCE_S)
        self._reader.join(PATIENCE_S)
        while not self._lines.empty():
            self.told.append(self._lines.get())
        return exit_code, output

    def engines(self) -> list[int]:
        file = self.folder / "pids"
        pids = [int(line) for line in file.read_text().split()] if file.exists() else []
        return [pid for pid in pids if psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE]

    def wait_for_engines(self, count: int) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while len(self.engines()) != count:
            assert time.monotonic() < deadline, self.engines()
            time.sleep(0.05)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        self._reader.join()
        for stream in (self.process.stdout, self.process.stderr):
            assert stream is not None
            stream.close()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    behave(tmp_path)
    (tmp_path / "manifest.yaml").write_text(service(tmp_path))
    return tmp_path


def behave(folder: Path, version: str = "v1", **behaviour: Any) -> None:
    (folder / f"{version}.json").write_text(json.dumps({"version": version, **behaviour}))


@pytest.fixture
def start(folder: Path) -> Iterator[Any]:
    running: list[Play] = []

    def starter(*arguments: str) -> Play:
        running.append(Play(folder, *arguments))
        return running[-1]

    yield starter
    for play in running:
        play.close()
        play.wait_for_engines(0)


def test_a_question_is_answered_and_nothing_is_left(folder: Path, start: Any) -> None:
    play = start("--ask", "Hello?")
    assert play.finish() == (0, "word0 word1 word2 \n")
    starting, ready = [line for line in play.told if "its knobs" not in line][:2]
    assert starting == "chat: Starting, 0 of 1 ready"
    assert ready.startswith("chat: Ready, 1 of 1 ready at http://127.0.0.1:")
    assert play.engines() == []
    assert not list(folder.glob("pagefleet-play-*"))  # logs of a good run are no use


def test_stay_serves_on_and_prints_what_to_paste(folder: Path, start: Any) -> None:
    play = start("--ask", "Hello?", "--stay")
    assert play.process.stdout.readline() == "word0 word1 word2 \n"
    curl = play.process.stdout.readline()
    url = curl.split()[1]
    assert curl.startswith("curl http://127.0.0.1:")
    assert '"model": "chat"' in curl
    assert httpx.post(url, json={"model": "chat"}, trust_env=False).json()["model"] == "chat"
    play.process.send_signal(signal.SIGTERM)
    assert play.finish()[0] == 0
    assert play.engines() == []


def test_the_choice_of_auto_is_told_once_for_each_version_of_a_service(folder: Path, start: Any) -> None:
    play = start()
    assert "v1.json is no model" in play.wait_for("chat: its knobs are not planned: ")
    behave(folder, "v2")
    play.manifest.write_text(service(folder) + service(folder, "code", version="v2"))
    assert "v2.json is no model" in play.wait_for("its knobs are not planned: ")


def test_the_files_are_followed(folder: Path, start: Any) -> None:
    play = start()
    url = play.wait_for("Ready, 1 of 1").split()[-1]
    play.manifest.write_text(service(folder, replicas=2) + service(folder, "code"))
    play.wait_for("code: Ready")
    play.wait_for_engines(3)
    models = httpx.get(f"{url}/models", trust_env=False).json()["data"]
    assert [model["id"] for model in models] == ["chat", "code"]

    play.manifest.write_text(service(folder, extra=", engine: {blockSize: big}"))
    assert "manifest.yaml:5 spec.engine.blockSize:" in play.wait_for("blockSize")
    play.wait_for("goes on as before")
    assert len(play.engines()) == 3

    play.manifest.write_text(service(folder))
    play.wait_for("code: gone")
    play.wait_for_engines(1)

    behave(folder, "v2", load_s=0.2)
    replacement = play.manifest.with_suffix(".new")  # as most editors save
    replacement.write_text(service(folder, version="v2"))
    replacement.replace(play.manifest)
    play.wait_for("chat: Updating")
    play.wait_for("chat: Ready")
    play.wait_for_engines(1)
    play.process.send_signal(signal.SIGINT)
    assert play.finish()[0] == 0


@pytest.mark.parametrize(
    ("behaviour", "extra", "sentence"),
    [
        ({"refuses": "The weights do not fit."}, "", "chat cannot answer: The weights do not fit. (log: "),
        (
            {},
            ", engine: {weights: {quantization: sparse24}}",
            "chat cannot answer: spec.engine.weights.quantization is",
        ),
        ({}, ", replicas: 0", "chat cannot answer: spec.replicas is 0; write replicas: 1."),
    ],
)
def test_a_question_to_a_service_that_cannot_run(
    folder: Path, start: Any, behaviour: dict[str, Any], extra: str, sentence: str
) -> None:
    behave(folder, **behaviour)
    text = service(folder, extra=extra)
    (folder / "manifest.yaml").write_text(text.replace("replicas: 1, replicas", "replicas"))
    play = start("--ask", "Hello?")
    play.wait_for(sentence)
    assert play.finish() == (1, "")


def test_a_question_to_a_service_that_crashes_on_it(folder: Path, start: Any) -> None:
    behave(folder, tokens=1, crash_on_request=True)
    play = start("--ask", "Hello?")
    assert "replica ended while it answered" in play.wait_for("refused (502)")
    assert play.finish()[0] == 1


def test_a_scaled_service_follows_its_edited_bounds_and_is_woken_by_the_question(folder: Path, start: Any) -> None:
    scaled = ", autoscaling: {minReplicas: 1, maxReplicas: 3, scaleToZero: {}}"
    (folder / "manifest.yaml").write_text(service(folder, replicas=0, extra=scaled))
    play = start("--ask", "Hello?", "--stay")
    assert play.process.stdout.readline() == "word0 word1 word2 \n"
    play.wait_for("chat: scales from 0 to 1 replica for WakeUp")
    play.manifest.write_text(service(folder, extra=scaled.replace("minReplicas: 1", "minReplicas: 2")))
    play.wait_for("chat: scales from 1 to 2 replicas for Bounds, limited by minReplicas (1 without it)")
    play.wait_for_engines(2)
    play.process.send_signal(signal.SIGINT)
    assert play.finish()[0] == 0
    assert play.engines() == []


@pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")
def test_engines_do_not_outlive_a_killed_play(folder: Path, start: Any) -> None:
    (folder / "manifest.yaml").write_text(service(folder, replicas=2))
    play = start()
    play.wait_for("Ready, 2 of 2")
    assert len(play.engines()) == 2
    play.process.send_signal(signal.SIGKILL)
    play.wait_for_engines(0)


def test_the_second_signal_kills(folder: Path, start: Any) -> None:
    behave(folder, ignores_sigterm=True)
    play = start()
    play.wait_for("Ready, 1 of 1")
    play.process.send_signal(signal.SIGINT)
    play.wait_for("Draining: requests in flight finish first.")
    assert len(play.engines()) == 1
    play.process.send_signal(signal.SIGINT)
    assert play.finish()[0] in (0, 130)
    assert play.engines() == []


def test_a_taken_port_is_named(folder: Path, start: Any) -> None:
    first = start()
    port = first.wait_for("Ready, 1 of 1").split("/v1")[0].rpartition(":")[2]
    second = start("--port", port)
    exit_code, _ = second.finish()
    assert exit_code == EXIT_USER_MISTAKE
    assert second.told[0].startswith(f"Port {port} of 127.0.0.1 is in use")
