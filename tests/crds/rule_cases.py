"""For every CEL rule an object that keeps it and one that breaks it, with the sentence that both judges say."""

import json
from dataclasses import dataclass

from tests.crds.judge import manifest


@dataclass(frozen=True)
class RuleCase:
    """One rule, tried both ways."""

    field: str
    sentence: str
    refused: str
    accepted: str

    def __str__(self) -> str:
        return f"{self.field}: {self.sentence[:40]}"


_RESOURCE = "accelerator: {resource: nvidia.com/gpu"
_SURGE = "{from: '07:30', to: '20:00'"

# Field, sentence, spec that breaks the rule, spec that keeps it.
_SPECS = [
    (
        "spec.accelerator",
        "count is 2, but no resource is named; write resource: nvidia.com/gpu, or count: 1",
        "  accelerator: {count: 2}",
        f"  {_RESOURCE}, count: 2}}",
    ),
    (
        "spec.accelerator",
        "memory is 80, less than 1Mi; write it with a unit, such as 80Gi",
        "  accelerator: {memory: '80'}",
        "  accelerator: {memory: 1048576}",
    ),
    (
        "spec.accelerator",
        "memory is 1048575, less than 1Mi; write it with a unit, such as 80Gi",
        "  accelerator: {memory: 1048575}",
        "  accelerator: {memory: 1Mi}",
    ),
    (
        "spec.accelerator.memory",
        "'80GB' is not an amount of memory; write a number above 0 with a unit, such as 80Gi",
        "  accelerator: {memory: 80GB}",
        "  accelerator: {memory: 80G}",
    ),
    (
        "spec.accelerator.memory",
        "'0' is not an amount of memory; write a number above 0 with a unit, such as 80Gi",
        "  accelerator: {memory: 0}",
        "  accelerator: {memory: 0.5Gi}",
    ),
    (
        "spec.accelerator.memory",
        "'0.0Gi' is not an amount of memory; write a number above 0 with a unit, such as 80Gi",
        "  accelerator: {memory: 0.0Gi}",
        "  accelerator: {memory: 9999999999999999999Ei}",
    ),
    (
        "spec.accelerator.resource",
        "gpu has a form that is not allowed here; write a value such as nvidia.com/gpu",
        "  accelerator: {resource: gpu}",
        f"  {_RESOURCE}}}",
    ),
    (
        "spec.model.name",
        "has space has a form that is not allowed here; write a value such as chat",
        "  model: {uri: 'hf://a/b', name: has space}",
        "  model: {uri: 'hf://a/b', name: 'org/model:v1.0'}",
    ),
    (
        "spec.engine",
        "maxNumBatchedTokens is 32, less than maxNumSeqs 64, so a step can't give each sequence a token; "
        "write maxNumBatchedTokens: 64 or more, or maxNumSeqs: 32 or less",
        "  engine: {maxNumSeqs: 64, maxNumBatchedTokens: 32}",
        "  engine: {maxNumSeqs: 64, maxNumBatchedTokens: 64}",
    ),
    (
        "spec.engine",
        "blockSize is 32, more than maxModelLen 16; write blockSize: 16 or less",
        "  engine: {blockSize: 32, maxModelLen: 16}",
        "  engine: {blockSize: 16, maxModelLen: 16}",
    ),
    (
        "spec.engine.speculative",
        "method draft needs a model; write model: {uri: hf://organisation/model}, or method: ngram",
        "  engine: {speculative: {method: draft}}",
        "  engine: {speculative: {method: draft, model: {uri: 'hf://a/b'}}}",
    ),
    (
        "spec.engine.speculative",
        "method ngram takes no model, but it is 'hf://a/b'; remove it, or write method: draft",
        "  engine: {speculative: {method: ngram, model: {uri: 'hf://a/b'}}}",
        "  engine: {speculative: {method: ngram}}",
    ),
    (
        "spec",
        "engine.parallelism needs 4 accelerators (tensor 4 x pipeline 1), but accelerator.count is 2; "
        "write accelerator.count: 4",
        f"  {_RESOURCE}, count: 2}}\n  engine: {{parallelism: {{tensor: 4}}}}",
        f"  {_RESOURCE}, count: 4}}\n  engine: {{parallelism: {{tensor: 2, pipeline: 2}}}}",
    ),
    (
        "spec",
        "engine.parallelism needs 4611686014132420609 accelerators (tensor 2147483647 x pipeline 2147483647), "
        "but accelerator.count is 1; write accelerator.count: 4611686014132420609",
        f"  {_RESOURCE}}}\n  engine: {{parallelism: {{tensor: 2147483647, pipeline: 2147483647}}}}",
        "  engine: {parallelism: {tensor: 4}}",
    ),
    (
        "spec",
        "tuning.quality is of hf://a/c, but model.uri is hf://a/b; measure that model, or remove tuning.quality",
        "  tuning: {quality: {model: 'hf://a/c'}}",
        "  tuning: {quality: {model: 'hf://a/b', results: [{weights: int8, klNats: 0.02}]}}",
    ),
    (
        "spec.autoscaling",
        "minReplicas is 3, more than maxReplicas 2; write maxReplicas: 3 or more",
        "  autoscaling: {minReplicas: 3, maxReplicas: 2}",
        "  autoscaling: {minReplicas: 2, maxReplicas: 2}",
    ),
    (
        "spec.autoscaling",
        "minReplicas is 3, more than maxReplicas 1; write maxReplicas: 3 or more",
        "  autoscaling: {minReplicas: 3}",
        "  autoscaling: {}",
    ),
    (
        "spec.autoscaling",
        "schedule has minReplicas 6, more than maxReplicas 4; write maxReplicas: 6 or more",
        f"  autoscaling: {{maxReplicas: 4, schedule: [{_SURGE}, minReplicas: 2}}, {_SURGE}, minReplicas: 6}}]}}",
        f"  autoscaling: {{maxReplicas: 6, schedule: [{_SURGE}, minReplicas: 6, days: [Mon, Sun]}}]}}",
    ),
    (
        "spec.autoscaling.schedule[0]",
        "from and to are both 07:30, which is no time at all; for a whole day write from: '00:00' and to: '24:00'",
        "  autoscaling: {schedule: [{from: '07:30', to: '07:30', minReplicas: 1}]}",
        "  autoscaling: {schedule: [{from: '00:00', to: '24:00', minReplicas: 1}]}",
    ),
    (
        "spec.autoscaling.schedule[0].from",
        "'7:30' is no time of day; write hours and minutes in quotes, such as '07:30'",
        "  autoscaling: {schedule: [{from: '7:30', to: '20:00', minReplicas: 1}]}",
        "  autoscaling: {schedule: [{from: 23:59, to: 20:00, minReplicas: 1}]}",
    ),
    (
        "spec.autoscaling.schedule[0].to",
        "'24:01' is no time of day; write hours and minutes in quotes, such as '07:30'",
        "  autoscaling: {schedule: [{from: '07:30', to: '24:01', minReplicas: 1}]}",
        "  autoscaling: {schedule: [{from: '07:30', to: '00:00', minReplicas: 1}]}",
    ),
    (
        "spec.autoscaling.schedule[0].timeZone",
        "'/etc/localtime' is no time zone; write a name of the IANA database, such as Europe/Berlin",
        f"  autoscaling: {{schedule: [{_SURGE}, minReplicas: 1, timeZone: /etc/localtime}}]}}",
        f"  autoscaling: {{schedule: [{_SURGE}, minReplicas: 1, timeZone: America/Argentina/Buenos_Aires}}]}}",
    ),
]

_DURATION_FIELDS = {
    "spec.rollout.progressDeadline": "  rollout: {{progressDeadline: {}}}",
    "spec.autoscaling.slo.ttft": "  autoscaling: {{slo: {{ttft: {}}}}}",
    "spec.autoscaling.slo.itl": "  autoscaling: {{slo: {{itl: {}}}}}",
    "spec.autoscaling.scaleDownWindow": "  autoscaling: {{scaleDownWindow: {}}}",
    "spec.autoscaling.scaleToZero.idle": "  autoscaling: {{scaleToZero: {{idle: {}}}}}",
}
_DURATIONS = [
    ("'15'", "'15' is not a duration; write a number with ms, s, m, h or d, such as 15s", "15s"),
    ("soon", "'soon' is not a duration; write a number with ms, s, m, h or d, such as 100ms or 15m", "1h30m"),
    ("0s", "'0s' is no time at all; write a duration above 0, such as 100ms", "0.001ms"),
]

_MODEL_FIELDS = {
    "spec.model": "  model: {}",
    "spec.engine.speculative.model": "  engine: {{speculative: {{method: draft, model: {}}}}}",
}
_FORMS = (
    "hf://organisation/model, or hf://organisation/model@revision; pvc://claim/path; oci://registry/image:tag, or "
    "oci://registry/image:tag/path; file:///absolute/path; package://module/file"
)
_SCHEMES = "hf://, pvc://, oci://, file://, package://"
_URIS = [
    ("gpt2", f"'gpt2' has no scheme; write one of {_FORMS}", "hf://gpt2"),
    ("org/gpt", "'org/gpt' has no scheme; write hf://org/gpt", "hf://org/gpt"),
    ("/models/gpt", "'/models/gpt' has no scheme; write file:///models/gpt", "file:///models/gpt"),
    ("s3://b/k", f"'s3://b/k' has the unknown scheme s3://; write one of {_SCHEMES}", "hf://b/k@main"),
    ("HF://a/b", f"'HF://a/b' has the unknown scheme HF://; write one of {_SCHEMES}", "hf://a/b@refs/pr/1"),
    (
        "hf://a/b/c",
        "'hf://a/b/c' is not a complete hf:// URI; write hf://organisation/model, or hf://organisation/model@revision",
        "hf://a/b",
    ),
    ("pvc://", "'pvc://' is not a complete pvc:// URI; write pvc://claim/path", "pvc://claim"),
    ("pvc://C/p", "'pvc://C/p' is not a complete pvc:// URI; write pvc://claim/path", "pvc://c/p/q"),
    (
        "oci://_r",
        "'oci://_r' is not a complete oci:// URI; write oci://registry/image:tag, or oci://registry/image:tag/path",
        f"oci://r.io:5000/m@sha256:{'a' * 64}/p",
    ),
    ("file://x", "'file://x' is not a complete file:// URI; write file:///absolute/path", "file:///x"),
    ("package://m", "'package://m' is not a complete package:// URI; write package://module/file", "package://m.n/f"),
    (
        "file:///a/../b",
        "'file:///a/../b' leaves its folder with '..'; write the path without it",
        "file:///a/..b",
    ),
]
_TOKENS = [
    (
        "{uri: 'pvc://c/p', tokenSecret: {name: x}}",
        "tokenSecret is only used with hf://, and uri is 'pvc://c/p'; remove tokenSecret",
        "{uri: 'hf://a/b', tokenSecret: {name: x}}",
    ),
    (
        "{uri: 'oci://r.io/m', tokenSecret: {name: x}}",
        "tokenSecret is only used with hf://, and uri is 'oci://r.io/m'; remove tokenSecret, "
        "or set imagePullSecrets in spec.template.spec",
        "{uri: 'oci://r.io/m'}",
    ),
]
_NAMES = [
    ("a" * 64, f"'{'a' * 40}'... has 64 characters, and it also names a Service; write 63 or fewer", "a" * 63),
    ("a.b", "'a.b' cannot name a Service; write a-z, 0-9 and - with a letter first, such as a-b", "a-b"),
    ("1st.one", "'1st.one' cannot name a Service; write a-z, 0-9 and - with a letter first, such as st-one", "st-1"),
    ("'1.0'", "'1.0' cannot name a Service; write a-z, 0-9 and - with a letter first, such as chat", "x"),
]

CASES = [
    *(RuleCase(field, text, manifest(refused), manifest(accepted)) for field, text, refused, accepted in _SPECS),
    *(
        RuleCase(field, text, manifest(spec.format(refused)), manifest(spec.format(accepted)))
        for field, spec in _DURATION_FIELDS.items()
        for refused, text, accepted in _DURATIONS
    ),
    *(
        RuleCase(
            f"{field}.uri",
            text,
            manifest(spec.format(f"{{uri: {json.dumps(refused)}}}")),
            manifest(spec.format(f"{{uri: {json.dumps(accepted)}}}")),
        )
        for field, spec in _MODEL_FIELDS.items()
        for refused, text, accepted in _URIS
    ),
    *(
        RuleCase(field, text, manifest(spec.format(refused)), manifest(spec.format(accepted)))
        for field, spec in _MODEL_FIELDS.items()
        for refused, text, accepted in _TOKENS
    ),
    *(
        RuleCase("metadata.name", text, manifest(name=refused), manifest(name=accepted))
        for refused, text, accepted in _NAMES
    ),
]
