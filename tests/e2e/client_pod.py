"""A pod that asks as users do: the official client in a loop."""

import sysconfig

import yaml

ENOUGH = "/tmp/enough"
# Asks again and again until the time is over or the file is there, each answer streamed; prints what came of it as one
# line of JSON.
ASK = f"""
import json, os, sys, time
from openai import OpenAI
url, seconds, tokens = sys.argv[1], float(sys.argv[2]), int(sys.argv[3])
end, answers, failures, first_s = time.monotonic() + seconds, [], [], None
while True:
    began = time.monotonic()
    try:
        with OpenAI(base_url=url, api_key="none", max_retries=0, timeout=180) as client:
            stream = client.chat.completions.create(
                model="chat", stream=True, temperature=0, max_tokens=tokens,
                messages=[{{"role": "user", "content": "What is the capital of France?"}}])
            text, reason = "", None
            for chunk in stream:
                if first_s is None: first_s = time.monotonic() - began
                text += chunk.choices[0].delta.content or ""
                reason = chunk.choices[0].finish_reason or reason
            assert reason in ("stop", "length"), reason
            answers.append(text)
    except Exception as error:
        failures.append(repr(error))
    if time.monotonic() >= end or os.path.exists({ENOUGH!r}):
        break
print(json.dumps({{"answers": answers, "failures": failures, "first_s": first_s}}))
"""


def client_pod(image: str) -> str:
    """Return a pod that has the openai package of this environment, which no image of ours holds."""
    packages = sysconfig.get_path("purelib")
    container = {
        "name": "client",
        "image": image,
        "imagePullPolicy": "Never",
        "command": ["sleep", "infinity"],
        "env": [{"name": "PYTHONPATH", "value": "/packages"}],
        "volumeMounts": [{"name": "packages", "mountPath": "/packages", "readOnly": True}],
    }
    volume = {"name": "packages", "hostPath": {"path": packages, "type": "Directory"}}
    spec = {"containers": [container], "volumes": [volume], "terminationGracePeriodSeconds": 0}
    return yaml.safe_dump({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "client"}, "spec": spec})
