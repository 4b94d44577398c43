"""The manifest reader and the API server give the same verdict on the same text."""

import asyncio
import json
import random
from pathlib import Path

import pytest

from pagefleet.api.client_connection import Connection
from tests.crds.judge import ask_reader, ask_server, manifest

ROOT = Path(__file__).parents[2]
EXAMPLES = [text for path in sorted((ROOT / "examples").glob("*.yaml")) for text in path.read_text().split("\n---\n")]

ACCEPTED = {
    "only a model": manifest(),
    "a mode in quotes": manifest("  tuning: {mode: 'Off'}"),
    "a section without values": manifest("  engine:\n  tuning:\n  autoscaling:\n  template:"),
    "fields without values": manifest("  replicas:\n  engine: {blockSize: , weights: {quantization: }}"),
    "a whole number for a share": manifest("  engine: {gpuMemoryUtilization: 1}"),
    "yes for true": manifest("  engine: {prefixCaching: yes}"),
    "numbers with an exponent": manifest("  replicas: 1e1\n  engine: {gpuMemoryUtilization: 5e-1, blockSize: 1.6E+1}"),
    "whole numbers with a point": manifest("  replicas: 1.0\n  engine: {maxNumSeqs: 8., gpuMemoryUtilization: .5}"),
    "memory with an exponent": manifest("  accelerator: {memory: 1e9}"),
    "numbers in four bases": manifest(
        "  engine: {maxNumSeqs: 0x10, maxModelLen: 0o777, maxNumBatchedTokens: 0b1_1111}\n  replicas: +09"
    ),
    "y for true": manifest("  engine: {prefixCaching: y}"),
    "octal and separated digits": manifest("  engine: {maxNumSeqs: 010, maxModelLen: 8_192}"),
    "an anchor": manifest("  autoscaling: {slo: {ttft: &t 2s, itl: *t}}"),
    "a merge": manifest("  engine: {kvCache: &a {dtype: auto}, weights: {quantization: none}}"),
    "a pod patch of any content": manifest("  template: {spec: {whatever: [1, {a: b}]}, metadata: {labels: {a: b}}}"),
    "200 tolerations": manifest("  template: {spec: {tolerations: [" + "{operator: Exists}, " * 200 + "]}}"),
    "unicode": manifest(name="chat, annotations: {note: 'schnell – 快い ☕'}"),
    "large annotations": manifest(name=f"chat, annotations: {{a: {'x' * 200_000}}}"),
    "labels": manifest(name="chat, labels: {example.com/team: a.b_c-d, empty: ''}"),
    "memory as a number": manifest("  accelerator: {resource: nvidia.com/gpu, memory: 85899345920}"),
    "a URI with a port": manifest(uri="oci://localhost:5000/team/model:v1/weights"),
    "a URI with a port alone": manifest(uri="oci://localhost:5000/Model"),
    "a URI with a digest": manifest(uri=f"oci://r.io/m@sha256:{'0' * 64}"),
    "a URI with signs": manifest(uri="file:///models/Llama%203 (8B)".replace(" ", "_")),
    "the longest claim": manifest(uri=f"pvc://{'a' * 253}/p"),
}

REFUSED = {
    "no spec": "apiVersion: serving.pagefleet.io/v1alpha1\nkind: InferenceService\nmetadata: {name: chat}\n",
    "an empty spec": manifest("  model:"),
    "a model without a URI": manifest("  model: {name: chat}"),
    "a misspelt field": manifest("  engine: {blokSize: 16}"),
    "Python's name of a field": manifest("  engine: {block_size: 16}"),
    "a field elsewhere": manifest("  blockSize: 16"),
    "a pod field beside the pod": manifest("  template: {nodeSelector: {a: b}}"),
    "a field twice": manifest("  replicas: 1\n  replicas: 2"),
    "a bare Off": manifest("  tuning: {mode: Off}"),
    "a word of another case": manifest("  tuning: {mode: auto}"),
    "a number in quotes": manifest("  replicas: '2'"),
    "a fraction of a replica": manifest("  replicas: 1.5"),
    "1 for true": manifest("  engine: {prefixCaching: 1}"),
    "a list for one value": manifest("  engine: [1]"),
    "one value for a list": manifest("  tuning: {allow: {weights: int8}}"),
    "a wrong value in a list": manifest("  tuning: {allow: {weights: [none, int7]}}"),
    "a duration without a unit": manifest("  rollout: {progressDeadline: 15}"),
    "minutes and seconds": manifest("  rollout: {progressDeadline: 1:30}"),
    "sixties": manifest("  engine: {maxNumSeqs: 1:30}"),
    "a name that is true": manifest("  model: {uri: 'hf://a/b', name: y}"),
    "a number that is infinite": manifest("  engine: {gpuMemoryUtilization: .inf}"),
    "memory as a fraction": manifest("  accelerator: {memory: 1.5}"),
    "memory beyond 64 bits": manifest("  accelerator: {memory: 99999999999999999999}"),
    "speculation without a method": manifest("  engine: {speculative: {tokens: 4}}"),
    "a secret without a name": manifest("  model: {uri: 'hf://a/b', tokenSecret: {key: x}}"),
    "a name with capitals": manifest(name="Chat"),
    "a name with a dot": manifest(name="a.b"),
    "a namespace with capitals": manifest(namespace="Team"),
    "a name that is a number": manifest(name="5"),
    "a label that is none": manifest(name="chat, labels: {a b: c}"),
    "a label value with a space": manifest(name="chat, labels: {a: b c}"),
    "a label value too long": manifest(name=f"chat, labels: {{a: {'x' * 64}}}"),
    "an annotation that is none": manifest(name="chat, annotations: {a/b/c: d}"),
    "a label that is a number": manifest(name="chat, labels: {a: 5}"),
    "annotations too large": manifest(name=f"chat, annotations: {{a: {'x' * 200_000}, b: {'x' * 62_200}}}"),
    "an unknown field of metadata": manifest(name="chat, annotation: {a: b}"),
    "another version": manifest().replace("v1alpha1", "v1"),
    "a tab in a URI": manifest(uri="file:///a\tb"),
    "a vertical tab in a URI": manifest(uri="file:///a\vb"),
    "a line break after a URI": manifest(uri="hf://a/b\n"),
    "a letter of another alphabet": manifest(uri="hf://a/ä"),
    "a claim too long": manifest(uri=f"pvc://{'a' * 254}"),
}


@pytest.mark.parametrize("name", ACCEPTED)
def test_the_reader_accepts(name: str) -> None:
    assert ask_reader(ACCEPTED[name]) == []


@pytest.mark.parametrize("name", REFUSED)
def test_the_reader_refuses(name: str) -> None:
    assert len(ask_reader(REFUSED[name])) == 1


@pytest.mark.parametrize("name", ACCEPTED)
async def test_the_server_accepts(connection: Connection, name: str) -> None:
    verdict = await ask_server(connection, ACCEPTED[name])
    assert verdict.is_accepted, verdict.message


@pytest.mark.parametrize("name", REFUSED)
async def test_the_server_refuses(connection: Connection, name: str) -> None:
    assert not (await ask_server(connection, REFUSED[name])).is_accepted


@pytest.mark.parametrize("text", EXAMPLES)
async def test_the_examples_are_accepted(connection: Connection, text: str) -> None:
    assert ask_reader(text) == []
    verdict = await ask_server(connection, text)
    assert verdict.is_accepted, verdict.message


# Texts to spoil at random, with the spec that holds them: where Python's patterns and the API server's could differ.
SPOILT = {
    "  model: {{uri: {}}}": [
        "hf://org/model-1.0@refs/pr/1",
        "pvc://claim-1.a/path/to",
        f"oci://r.io:5000/team/m_x:v1.0@sha256:{'0' * 64}/p",
        "oci://localhost:5000/m",
        "file:///a/../b c",
        "package://a_b.c/d.gguf",
    ],
    "  model: {{uri: 'hf://a/b', name: {}}}": ["org/model:v1.0_x-y"],
    "  accelerator: {{memory: {}}}": ["80Gi", "1.500000M", "0.01Ki", "1048576"],
    "  accelerator: {{resource: {}}}": ["nvidia.com/gpu_A-100.x"],
    "  rollout: {{progressDeadline: {}}}": ["1h30m0.5s100ms", "0.0d"],
}
ALPHABET = "aZ09_-./:@?#% \t\v\u00a0\u00e9'\\~MGiksmhd"


def spoilt(dice: random.Random, text: str) -> str:
    """Return a text with up to three characters changed, left out, put in, or a part of it twice."""
    for _ in range(dice.randint(0, 3)):
        at = dice.randrange(len(text) + 1)
        change = dice.randrange(4)
        if change == 3:
            text = text[: at + dice.randint(1, 5)] + text[at:]
        else:
            text = text[:at] + (dice.choice(ALPHABET) if change else "") + text[at + (change < 2) :]
    return text


async def test_spoilt_texts_get_the_same_verdict(connection: Connection) -> None:
    dice = random.Random(1)
    texts = [
        manifest(spec.format(json.dumps(spoilt(dice, text)))) for spec, kept in SPOILT.items() for text in kept * 40
    ]
    at_once = asyncio.Semaphore(8)

    async def ask(text: str) -> bool:
        async with at_once:
            return (await ask_server(connection, text)).is_accepted

    verdicts = await asyncio.gather(*map(ask, texts))
    assert [text for text, accepted in zip(texts, verdicts, strict=True) if accepted is bool(ask_reader(text))] == []
    assert 0.2 < sum(verdicts) / len(verdicts) < 0.8
