import pytest

from pagefleet.api.manifest import load_manifests
from tests.api.manifests import HEAD, errors, manifest


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("  engine: {blokSize: 32}", "spec.engine.blokSize: unknown field; did you mean blockSize?"),
        ("  engine: {block_size: 32}", "spec.engine.block_size: unknown field; did you mean blockSize?"),
        ("  blockSize: 32", "spec.blockSize: unknown field; did you mean spec.engine.blockSize?"),
        ("  engin: {}", "spec.engin: unknown field; did you mean engine?"),
        ("  tuning: {zebra: 1}", "spec.tuning.zebra: unknown field; known here: allow, mode, objective, quality"),
        (
            "  template: {nodeSelector: {}}",
            "spec.template.nodeSelector: unknown field; did you mean spec.template.spec.nodeSelector?",
        ),
        (
            "  tuning: {mode: Off}",
            'spec.tuning.mode: is false, because YAML reads a bare Off so; write it in quotes: "Off"',
        ),
        ("  tuning: {mode: auto}", "spec.tuning.mode: auto is not one of Off, Recommend, Auto; did you mean Auto?"),
        (
            "  engine: {weights: {quantization: int9}}",
            "spec.engine.weights.quantization: int9 is not one of "
            "none, int8, int4, gptq, awq, sparse24; did you mean int8?",
        ),
        ("  engine: {kvCache: {dtype: 3}}", "spec.engine.kvCache.dtype: 3 is not one of auto, bf16, int8, int4, k4v3"),
        ("  engine: {blockSize: 0}", "spec.engine.blockSize: 0 is too small; write 1 or more"),
        ("  replicas: 2147483648", "spec.replicas: 2147483648 is too large; write 2147483647 or less"),
        ("  replicas: -1", "spec.replicas: -1 is too small; write 0 or more"),
        ('  replicas: "2"', 'spec.replicas: "2" is text, not a whole number; write it without quotes'),
        ("  replicas: many", 'spec.replicas: "many" is text, not a whole number'),
        ("  replicas: 1.5", "spec.replicas: 1.5 is not a whole number"),
        ("  replicas: yes", "spec.replicas: true is not a whole number"),
        (
            "  engine: {gpuMemoryUtilization: 90}",
            "spec.engine.gpuMemoryUtilization: 90 is no share; write a number above 0 and up to 1, such as 0.9",
        ),
        (
            "  engine: {gpuMemoryUtilization: 0}",
            "spec.engine.gpuMemoryUtilization: 0 is no share; write a number above 0 and up to 1, such as 0.9",
        ),
        (
            "  engine: {prefixCaching: 'True'}",
            'spec.engine.prefixCaching: "True" is text, not true or false; write it without quotes: true',
        ),
        ("  engine: {prefixCaching: [1]}", "spec.engine.prefixCaching: [1] is not true or false"),
        ("  engine: 5", "spec.engine: 5 is not a section of fields"),
        ("  tuning: {allow: {weights: int8}}", "spec.tuning.allow.weights: int8 is not a list"),
        (
            "  tuning: {allow: {weights: []}}",
            "spec.tuning.allow.weights: is empty; write a value, or leave the field out",
        ),
        (
            "  tuning: {allow: {weights: [none, int7]}}",
            "spec.tuning.allow.weights[1]: int7 is not one of "
            "none, int8, int4, gptq, awq, sparse24; did you mean int8?",
        ),
        ("  engine: {speculative: {}}", "spec.engine.speculative.method: is required; write method: ngram"),
        (
            "  accelerator: {resource: gpu}",
            "spec.accelerator.resource: gpu has a form that is not allowed here; write a value such as nvidia.com/gpu",
        ),
        (
            "  accelerator: {memory: 80GB}",
            "spec.accelerator.memory: '80GB' is not an amount of memory; "
            "write a number above 0 with a unit, such as 80Gi",
        ),
        (
            "  rollout: {progressDeadline: 15}",
            "spec.rollout.progressDeadline: '15' is not a duration; write a number with ms, s, m, h or d, such as 15s",
        ),
        (
            "  engine: {blockSize: 1, blockSize: 2}",
            "spec.engine.blockSize: is written twice, first on line 6; keep one of them",
        ),
        (
            "  engine: {maxNumSeqs: .inf}",
            "spec.engine.maxNumSeqs: .inf is not a number that Kubernetes reads; write it in digits",
        ),
        ("  engine: !mine {}", "spec.engine: the tag !mine means nothing to Kubernetes; remove it"),
        ("  1: 2", "spec: a field name must be text, not 1; write it in quotes"),
        ("  <<: 5", "spec: a merge (<<) takes the alias of a section, such as `<<: *defaults`"),
    ],
)
def test_one_mistake_gives_one_line(spec: str, message: str) -> None:
    assert errors(manifest(spec=spec)) == [f"m.yaml:6 {message}"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (manifest(name="Chat"), "m.yaml:3 metadata.name: 'Chat' cannot name a Service"),
        (manifest(name="5"), 'm.yaml:3 metadata.name: 5 is not text; write it in quotes: "5"'),
        (manifest(uri="gpt/2"), "m.yaml:5 spec.model.uri: 'gpt/2' has no scheme; write hf://gpt/2"),
        (manifest(uri=""), "m.yaml:5 spec.model.uri: is empty; write a value"),
        (manifest(uri="hf://" + "a" * 3000), "m.yaml:5 spec.model.uri: hf://aaa"),
        (manifest().replace("uri", "ury"), "m.yaml:5 spec.model.ury: unknown field; did you mean uri?"),
        (
            manifest().replace("model: {uri: 'hf://a/b'}", "uri: x"),
            "m.yaml:5 spec.uri: unknown field; did you mean spec.model.uri?",
        ),
        (
            HEAD + "metadata: {name: a}\n",
            "m.yaml:1 spec: is required; write spec: {model: {uri: hf://organisation/model}}",
        ),
        (HEAD + "spec: {model: {uri: 'hf://a/b'}}\n", "m.yaml:1 metadata: is required; write metadata: {name: chat}"),
        (
            HEAD + "metadata: {}\nspec: {model: {uri: 'hf://a/b'}}\n",
            "m.yaml:3 metadata.name: is required; write name: chat",
        ),
        (
            manifest().replace("v1alpha1", "v1"),
            "m.yaml:1 apiVersion: serving.pagefleet.io/v1 is not a version that exists; write serving",
        ),
        (
            manifest().replace("pagefleet.io", "pagefleet.com"),
            "m.yaml:1 apiVersion: serving.pagefleet.com/v1alpha1 is not the group",
        ),
        (
            manifest().replace("serving.pagefleet.io/", ""),
            "m.yaml:1 apiVersion: v1alpha1 is not the group of this kind; write serving",
        ),
        (
            manifest().replace("InferenceService", "Inference"),
            "m.yaml:2 kind: Inference is not a kind of serving.pagefleet.io",
        ),
        (
            "kind: InferenceService\n",
            "m.yaml:1 apiVersion: is required; write apiVersion: serving.pagefleet.io/v1alpha1",
        ),
        ("apiVersion: serving.pagefleet.io/v1alpha1\n", "m.yaml:1 kind: is required; write kind: InferenceService"),
        ("apiVersion: 1\nkind: List\n", "m.yaml:1 apiVersion: 1 is not text; write apiVersion: serving"),
        ("a: b\n", "m.yaml:1: this is not a Kubernetes object; write apiVersion"),
        ("hello\n", "m.yaml:1: hello is not an object; write apiVersion, kind, metadata and spec"),
        ("apiVersion: v1\nkind: List\n", "m.yaml:1 items: a List needs items"),
        ("apiVersion: v1\nkind: List\nitems: [5]\n", "m.yaml:3 items[0]: 5 is not an object"),
    ],
)
def test_mistakes_of_an_object(text: str, message: str) -> None:
    (error,) = errors(text)
    assert error.startswith(message)


def test_all_mistakes_are_told_in_order() -> None:
    text = (
        manifest(name="A", spec="  blokSize: 1\n  engine:\n    maxNumSeqs: 0\n    maxModelLen: x\n")
        + "---\n"
        + manifest(uri="x")
    )
    found = load_manifests(text, "m.yaml").errors
    assert [(error.document, error.line, error.field) for error in found] == [
        (1, 3, "metadata.name"),
        (1, 6, "spec.blokSize"),
        (1, 8, "spec.engine.maxNumSeqs"),
        (1, 9, "spec.engine.maxModelLen"),
        (2, 15, "spec.model.uri"),
    ]
    assert str(found[-1]).startswith("m.yaml:15 (document 2) spec.model.uri: 'x' has no scheme")
