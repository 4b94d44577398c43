"""`pagefleet engine serve`: its flags are the engine's settings, its ranges have sentences."""

import inspect
import re
from typing import Any

import msgspec
import pytest

from pagefleet.cli import engine_command
from pagefleet.cli.engine_checks import find_mistakes
from pagefleet.cli.main import run
from pagefleet.engine.config import EngineConfig, ServerConfig

WITHOUT_FLAG = {"stall_timeout_s"}  # a probe's constant


def test_every_setting_has_a_flag_with_the_same_default() -> None:
    flags = {name: parameter.default for name, parameter in inspect.signature(engine_command.serve).parameters.items()}
    flags["api_keys"] = flags.pop("api_key") or ()  # a flag that repeats is a list, or nothing
    flags["quantization_ignore"] = tuple(flags["quantization_ignore"].split(","))
    settings = {
        field.name.removesuffix("_s"): field.default
        if field.default is not msgspec.NODEFAULT
        else inspect.Parameter.empty
        for struct in (EngineConfig, ServerConfig)
        for field in msgspec.structs.fields(struct)
        if field.name not in WITHOUT_FLAG
    }
    assert flags == settings


@pytest.mark.parametrize(
    ("engine", "server", "sentence"),
    [
        ({"gpu_memory_utilization": 1.5}, {}, "--gpu-memory-utilization 1.5 is not a share of the memory"),
        ({"gpu_memory_utilization": float("nan")}, {}, "--gpu-memory-utilization nan"),
        ({"block_size": 0}, {}, "--block-size 0 is too small: the smallest is 1, for example --block-size 16"),
        ({"max_num_seqs": 0}, {}, "--max-num-seqs 0 is too small: the smallest is 1"),
        ({"max_model_len": -5}, {}, "--max-model-len -5 is too small"),
        ({"threads": 0}, {}, "--threads 0 is too small"),
        ({"seed": 2**63}, {}, "--seed 9223372036854775808 does not fit"),
        (
            {"kv_events_endpoint": "*:5557"},
            {},
            r"--kv-events-endpoint \*:5557 is not a ZeroMQ address: .* tcp://\*:5557",
        ),
        ({"kv_events_endpoint": "tcp://*:1", "enable_prefix_caching": False}, {}, "--no-enable-prefix-caching"),
        ({"queue_ttft_target_s": 0.0}, {}, "--queue-ttft-target 0 is not a time in seconds: for example 2"),
        ({"model": ""}, {}, "MODEL is empty"),
        ({}, {"port": 70000}, "--port 70000 is not a port"),
        ({}, {"port": 9000}, "--port and --admin-port are both 9000"),
        ({}, {"drain_timeout_s": -1.0}, "--drain-timeout -1 is not a time"),
    ],
)
def test_out_of_range(engine: dict[str, Any], server: dict[str, Any], sentence: str) -> None:
    mistakes = find_mistakes(EngineConfig(**{"model": "M", **engine}), ServerConfig(**server))
    assert len(mistakes) == 1
    assert re.search(sentence, mistakes[0])


def test_keys_come_from_flags_or_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    configs: list[ServerConfig] = []

    def keep(engine: EngineConfig, server: ServerConfig) -> int:
        configs.append(server)
        return 0

    monkeypatch.setattr(engine_command, "_run", keep)

    run(["engine", "serve", "M", "--api-key", "a", "--api-key", "b", "--trust-request-chat-template"])
    monkeypatch.setenv("PAGEFLEET_API_KEY", "c d")
    run(["engine", "serve", "M"])
    monkeypatch.setenv("PAGEFLEET_API_KEY", "")
    run(["engine", "serve", "M"])

    assert [server.api_keys for server in configs] == [("a", "b"), ("c", "d"), ()]
    assert [server.trust_request_chat_template for server in configs] == [True, False, False]


def test_the_defaults_are_in_range() -> None:
    assert find_mistakes(EngineConfig(model="M"), ServerConfig()) == []
