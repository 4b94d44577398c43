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
# Asks with some threads, each over the connections that its client keeps, with the client's own retries, until the file
# is there; prints how many retries each answer took.
ASK_MANY = f"""
import json, os, sys, threading, time
from openai import OpenAI
url, threads, tokens, pause_s = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])
retries, failures = [], []
def ask():
    with OpenAI(base_url=url, api_key="none", timeout=60) as client:
        while not os.path.exists({ENOUGH!r}):
            try:
                answer = client.chat.completions.with_raw_response.create(
                    model="chat", max_tokens=tokens, messages=[{{"role": "user", "content": "Hello"}}])
                assert answer.parse().choices[0].finish_reason in ("stop", "length")
                retries.append(answer.retries_taken)
                time.sleep(pause_s)
            except Exception as error:
                failures.append(repr(error))
                time.sleep(0.5)
running = [threading.Thread(target=ask) for _ in range(threads)]
for one in running: one.start()
for one in running: one.join()
print(json.dumps({{"retries": retries, "failures": failures}}))
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
