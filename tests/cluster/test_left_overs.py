"""`down` leaves nothing on the machine, and the next run clears what a killed one left."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster import lifecycle, processes, records
from tests.cluster.build import ensure_programs
from tests.cluster.layout import Layout
from tests.cluster.paths import STATE
from tests.cluster.records import Owner, Record
from tests.cluster.requirements import missing_for_api_tier, missing_for_node_tier

ROOT = Path(__file__).parents[2]

_RUN = """
import sys, time
from tests.cluster import lifecycle
from tests.cluster.build import ensure_programs
from tests.cluster.records import Owner
nodes = int(sys.argv[2])
programs = ensure_programs(lifecycle.silent, nodes=nodes > 0)
lifecycle.up(sys.argv[1], programs, node_count=nodes, gpus=1, owner=Owner.this_process(), report=print)
print("up", flush=True)
time.sleep(600)
"""

TIERS = [pytest.param(0, id="control plane"), pytest.param(1, id="one node")]


@pytest.fixture
def nodes(request: pytest.FixtureRequest) -> int:
    """How many nodes a cluster gets, where this machine holds them."""
    count: int = request.param
    if reason := missing_for_node_tier() if count else missing_for_api_tier():
        pytest.skip(reason)
    ensure_programs(lifecycle.silent, nodes=count > 0)
    return count


def traces(layout: Layout) -> Iterator[str]:
    """Name what is on the machine of a cluster."""
    for process in processes.find(STATE / layout.name):
        yield f"process {process}"
    for mount in Path("/proc/self/mounts").read_text().splitlines():
        if layout.name in mount or f"{layout.bridge}n" in mount:
            yield f"mount {mount}"
    for device in Path("/sys/class/net").iterdir():
        if device.name.startswith(layout.bridge):
            yield f"device {device.name}"
    network = f"{layout.number:02X}0A"  # the low bytes, as the kernel writes 10.N.0.0
    for route in Path("/proc/net/route").read_text().splitlines()[1:]:
        if route.split()[1].endswith(network):
            yield f"route {route}"
    for group in (path for node in layout.nodes for path in Path("/sys/fs/cgroup").rglob(node.cgroup.lstrip("/"))):
        yield f"control group {group}"
    if (STATE / layout.name).exists():
        yield f"folder {layout.name}"


def start_run(name: str, nodes: int) -> subprocess.Popen[str]:
    """Start a process that starts a cluster, as a test run does."""
    return subprocess.Popen(
        [sys.executable, "-c", _RUN, name, str(nodes)], cwd=ROOT, stdout=subprocess.PIPE, text=True, env={**os.environ}
    )


def wait_record(name: str) -> Record:
    """Wait until a cluster has been claimed."""
    deadline = time.monotonic() + 30
    while not (record := records.read(name)):
        assert time.monotonic() < deadline
        time.sleep(0.005)
    return record


@pytest.mark.parametrize("nodes", TIERS, indirect=True)
def test_down_leaves_nothing(nodes: int) -> None:
    programs = ensure_programs(lifecycle.silent, nodes=nodes > 0)
    cluster = lifecycle.up("down-test", programs, node_count=nodes, gpus=1, owner=Owner.this_process())
    found = {trace.split()[0] for trace in traces(cluster.layout)}
    assert found >= ({"process", "folder", "device", "route", "control"} if nodes else {"process", "folder"})
    lifecycle.down(cluster.record)
    assert [*traces(cluster.layout)] == []


@pytest.mark.parametrize(("nodes", "after_s"), [(0, 0.0), (0, None), (1, 0.0), (1, 0.5), (1, None)], indirect=["nodes"])
def test_next_run_clears_what_a_killed_one_left(nodes: int, after_s: float | None) -> None:
    """Killed as soon as its record is there, while it starts, and when it is up."""
    name = "killed-test"
    with start_run(name, nodes) as run:
        assert run.stdout is not None
        record = wait_record(name)
        if after_s is None:
            assert "up\n" in run.stdout
        else:
            time.sleep(after_s)
        assert name not in lifecycle.clear_left_overs()  # its owner lives
        run.send_signal(signal.SIGKILL)
    assert record.is_left_over
    assert lifecycle.clear_left_overs() == [name]
    assert [*traces(record.layout)] == []


@pytest.mark.parametrize("nodes", TIERS, indirect=True)
def test_of_runs_that_begin_together_one_clears_up(nodes: int) -> None:
    """As the workers of one test run do; the others wait, so that what they start meets nothing half removed."""
    name = "killed-together"
    with start_run(name, nodes) as run:
        assert run.stdout is not None
        record = wait_record(name)
        assert "up\n" in run.stdout
        run.send_signal(signal.SIGKILL)
    clear = "from tests.cluster import lifecycle; print(*lifecycle.clear_left_overs())"
    beginners = [
        subprocess.Popen([sys.executable, "-c", clear], cwd=ROOT, stdout=subprocess.PIPE, text=True) for _ in range(4)
    ]
    said = sorted(beginner.communicate()[0].strip() for beginner in beginners)
    assert [beginner.returncode for beginner in beginners] == [0] * len(beginners)
    assert said == ["", "", "", name]
    assert [*traces(record.layout)] == []


def test_a_cluster_can_be_taken_down_twice() -> None:
    record = records.claim(f"gone-{os.getpid()}", node_count=0, gpus=0, owner=None)
    lifecycle.down(record)
    lifecycle.down(record)
    assert not record.folder.exists()
