from pagefleet.engine.bench.scrape import ScrapeOptions, measure_scrapes
from pagefleet.engine.config import EngineConfig
from tests.support.engine_server import EngineServer


def test_quiet_and_scraped_turns_are_compared(engine: EngineServer) -> None:
    engine.wait_capacity(in_flight=0, running=0)
    lines: list[str] = []
    options = ScrapeOptions(engine=EngineConfig(model="tiny"), sequences=2, scrapes=20, rounds=2)
    report = measure_scrapes(engine, options, 4000, lines.append)
    engine.wait_capacity(in_flight=0, running=0)

    turns = report["turns"]
    assert isinstance(turns, list)
    assert [turn["is_scraped"] for turn in turns] == [False, True, True, False]
    assert all(turn["steps"] > 0 and turn["step_ms"] > 0 for turn in turns)
    assert isinstance(report["step_ratio"], float)
    assert [line.split(":")[0] for line in lines] == [
        "idle, /livez",
        "idle, /capacity",
        "20 scrapes at 50/s beside 2 sequences",
    ]
