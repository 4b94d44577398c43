"""`pagefleet dashboard draw`: what it says where it cannot draw, and how values and tables are shown."""

import socket
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread

import pytest

from pagefleet.cli.dashboards.answers import Answer, Series, fill_in
from pagefleet.cli.dashboards.board import Query, Unit
from pagefleet.cli.dashboards.draw import table_cells
from pagefleet.cli.dashboards.format import format_value
from pagefleet.cli.main import run


@pytest.fixture
def picture(tmp_path: Path) -> Path:
    return tmp_path / "board.png"


def free_port() -> int:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        return int(bound.getsockname()[1])


@pytest.mark.parametrize(
    ("arguments", "code", "sentence"),
    [
        (["--prometheus", "127.0.0.1:9090"], 2, "--prometheus 127.0.0.1:9090 is no URL: write for example http://"),
        (["--prometheus", "http://x", "--range", "15"], 2, "--range 15 is no time: write a whole number with s, m, h"),
        (["--prometheus", "http://x", "--rate-interval", "0s"], 2, "--rate-interval 0s is no time"),
        (["--prometheus", "http://x", "--out", "/nowhere/x.png"], 2, "there is no folder /nowhere"),
        (["--prometheus", f"http://127.0.0.1:{free_port()}"], 1, "does not answer ([Errno 111] Connection refused)."),
    ],
)
def test_one_sentence_says_what_is_wrong(
    arguments: list[str], code: int, sentence: str, capsys: pytest.CaptureFixture[str], picture: Path
) -> None:
    assert run(["dashboard", "draw", "fleet", "--out", str(picture), *arguments]) == code
    said = capsys.readouterr().err
    assert sentence in said
    assert len(said.splitlines()) == 1
    assert not picture.exists()


@pytest.mark.parametrize("answer", [b"<html>", b"[]", b'{"data": null}'])
def test_another_server_is_no_prometheus(answer: bytes, capsys: pytest.CaptureFixture[str], picture: Path) -> None:
    class Other(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Other) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}"
        assert run(["dashboard", "draw", "fleet", "--prometheus", url, "--out", str(picture)]) == 1
        server.shutdown()
    assert capsys.readouterr().err == f"{url} does not answer as a Prometheus does.\n"


@pytest.mark.parametrize(
    ("value", "unit", "shown"),
    [
        (0.853, Unit.RATIO, "85.3 %"),
        (0.0123, Unit.SECONDS, "12.3 ms"),
        (1.5, Unit.SECONDS, "1.5 s"),
        (600, Unit.SECONDS, "10 min"),
        (1.5 * 2**30, Unit.BYTES, "1.5 GiB"),
        (-2048, Unit.BYTES, "-2 KiB"),
        (12_345, Unit.TOKENS_PER_SECOND, "12.3k tok/s"),
        (3, Unit.NONE, "3"),
        (1, Unit.YES_OR_NO, "yes"),
    ],
)
def test_values_have_units(value: float, unit: Unit, shown: str) -> None:
    assert format_value(value, unit) == shown


def test_variables_take_everything_unless_chosen() -> None:
    filled = fill_in('rate(x{a=~"$a", b=~"$b"}[$__rate_interval])', {"a": "one"}, rate_interval_s=30)
    assert filled == 'rate(x{a=~"one", b=~".*"}[30s])'


def series(labels: Mapping[str, str], value: float) -> Series:
    return Series(labels, (1.0,), (value,))


def test_a_table_joins_queries_by_their_labels() -> None:
    answers = [
        Answer(Query("…", "Ready"), (series({"service": "a"}, 2), series({"service": "b"}, 3))),
        Answer(Query("…", "Missed", Unit.RATIO), (series({"service": "b"}, 0.25),)),
    ]
    assert table_cells(answers) == (["service", "Ready", "Missed"], [["a", "2", "–"], ["b", "3", "25 %"]])


def test_a_table_of_infos_shows_labels_alone() -> None:
    answers = [
        Answer(Query("…", "engines"), (series({"pod": "a", "dtype": "bfloat16"}, 1),)),
        Answer(Query("…", "builds"), (series({"pod": "a", "version": "0.1.0"}, 1),)),
    ]
    assert table_cells(answers) == (["pod", "dtype", "version"], [["a", "bfloat16", "0.1.0"]])
