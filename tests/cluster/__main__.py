"""`python -m tests.cluster`: start and remove a cluster by hand, build its programs, install what nodes need.

Imports what is not in the standard library only where it is used: CI builds before it installs.
"""

import argparse
import sys

from tests.cluster.build import ensure_programs
from tests.cluster.paths import ClusterError
from tests.cluster.requirements import install_packages, missing_for_api_tier, missing_for_node_tier


def main() -> int:
    """Run a command and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.cluster", description="A throw-away Kubernetes cluster.")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("build", help="build the programs, unless they are built")
    commands.add_parser("packages", help="install the Debian packages that nodes need")
    up = commands.add_parser("up", help="start a cluster")
    up.add_argument("--name", default="hand")
    up.add_argument("--nodes", type=int, default=1, help="0: the control plane alone, which needs no root")
    up.add_argument("--gpus", type=int, default=8, help="fake GPUs of each node")
    up.add_argument("--fake-nodes", type=int, default=0, help="nodes without a kubelet")
    up.add_argument("--image", action="append", default=[], help="an OCI archive to load on the nodes")
    down = commands.add_parser("down", help="remove clusters")
    down.add_argument("--name", help="one cluster (all that no running test holds)")
    commands.add_parser("status", help="list clusters")
    arguments = parser.parse_args()
    try:
        _COMMANDS[arguments.command](arguments)
    except ClusterError as error:
        say(str(error))
        return 1
    return 0


def say(text: str) -> None:
    """Write a line to the terminal."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def _build(_: argparse.Namespace) -> None:
    say(str(ensure_programs(say, nodes=True).folder))


def _packages(_: argparse.Namespace) -> None:
    install_packages()


def _up(arguments: argparse.Namespace) -> None:
    from pathlib import Path

    from tests.cluster import lifecycle

    if reason := missing_for_node_tier() if arguments.nodes else missing_for_api_tier():
        alone_works = arguments.nodes and not missing_for_api_tier()
        raise ClusterError(f"{reason}; or --nodes 0, the control plane alone" if alone_works else reason)
    lifecycle.clear_left_overs()
    programs = ensure_programs(say, nodes=arguments.nodes > 0)
    cluster = lifecycle.up(
        arguments.name, programs, node_count=arguments.nodes, gpus=arguments.gpus if arguments.nodes else 0, report=say
    )
    for image in arguments.image:
        cluster.import_image(Path(image))
    if arguments.fake_nodes:
        cluster.fake_nodes(arguments.fake_nodes, arguments.gpus)
    say(f"export KUBECONFIG={cluster.kubeconfig} PATH={programs.folder}:$PATH")


def _down(arguments: argparse.Namespace) -> None:
    from tests.cluster import lifecycle, records

    lifecycle.clear_left_overs()
    chosen = [
        record for record in records.read_all() if record.owner is None and arguments.name in (None, record.layout.name)
    ]
    if arguments.name and not chosen:
        raise ClusterError(f"there is no cluster {arguments.name}: `python -m tests.cluster status` lists them")
    for record in chosen:
        lifecycle.down(record)
        say(f"removed {record.layout.name}")


def _status(_: argparse.Namespace) -> None:
    from tests.cluster import records

    for record in records.read_all():
        owner = "a test run that is gone" if record.is_left_over else "a test run" if record.owner else "by hand"
        say(f"{record.layout.name}: {record.layout.node_count} nodes, {owner}, {record.layout.url}, {record.folder}")


_COMMANDS = {"build": _build, "packages": _packages, "up": _up, "down": _down, "status": _status}

if __name__ == "__main__":
    sys.exit(main())
