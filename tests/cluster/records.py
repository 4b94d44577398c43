"""Which clusters there are: a record in each cluster's folder, written before anything else is made."""

import fcntl
import json
import os
import shutil
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path

from tests.cluster import processes
from tests.cluster.layout import FIRST_NUMBER, LAST_NUMBER, Layout
from tests.cluster.paths import STATE, ClusterError

_FILE = "cluster.json"


@dataclass(frozen=True)
class Owner:
    """The process that a cluster lives for."""

    process_id: int
    start_time: int | None

    @classmethod
    def this_process(cls) -> "Owner":
        """Return this process."""
        return cls(os.getpid(), processes.start_time(os.getpid()))

    def lives(self) -> bool:
        """Tell whether the process is still there."""
        return self.start_time is not None and processes.start_time(self.process_id) == self.start_time


@dataclass(frozen=True)
class Record:
    """A cluster's layout and owner; one without an owner stays until it is taken down by hand."""

    layout: Layout
    owner: Owner | None

    @property
    def folder(self) -> Path:
        """Everything that the cluster keeps on disk."""
        return STATE / self.layout.name

    @property
    def is_left_over(self) -> bool:
        """Whether the test run that started it is gone."""
        return self.owner is not None and not self.owner.lives()


def read(name: str) -> Record | None:
    """Return a cluster's record, or nothing when there is no such cluster."""
    try:
        values = json.loads((STATE / name / _FILE).read_text())
    except FileNotFoundError:
        return None
    return Record(Layout(**values["layout"]), Owner(**values["owner"]) if values["owner"] else None)


def read_all() -> list[Record]:
    """Return the records of all clusters."""
    return [record for path in sorted(STATE.glob(f"*/{_FILE}")) if (record := read(path.parent.name))]


@contextmanager
def locked(name: str = "lock") -> Iterator[None]:
    """Keep other runs from claiming a number or forgetting a cluster meanwhile, or from what another name is for."""
    STATE.mkdir(parents=True, exist_ok=True)
    with (STATE / name).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def claim(name: str, *, node_count: int, gpus: int, owner: Owner | None) -> Record:
    """Claim a name and a free number for a new cluster.

    Raises:
        ClusterError: the name is taken, or no number is free.
    """
    with locked():
        if (STATE / name).exists():
            raise ClusterError(f"a cluster {name} is there already: `make cluster-down` takes it away")
        taken = {record.layout.number for record in read_all()}
        for number in range(FIRST_NUMBER, LAST_NUMBER + 1):
            layout = Layout(name, number, node_count, gpus)
            if number not in taken and _is_free(layout):
                record = Record(layout, owner)
                _write(record)
                return record
    raise ClusterError(f"no network of 10.{FIRST_NUMBER}.0.0/16 to 10.{LAST_NUMBER}.0.0/16 is free on this machine")


def forget(record: Record) -> None:
    """Remove a cluster's folder, its record last, so that a run that dies meanwhile leaves something to find.

    One that is gone was removed by another process, as `make cluster-down` beside a test run.
    """
    if not record.folder.exists():
        return
    for path in record.folder.iterdir():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        elif path.name != _FILE:
            path.unlink()
    shutil.rmtree(record.folder)


def _write(record: Record) -> None:
    (record.folder / "logs").mkdir(parents=True)
    unfinished = record.folder / f"{_FILE}.new"
    unfinished.write_text(json.dumps(asdict(record)))
    unfinished.rename(record.folder / _FILE)


def _is_free(layout: Layout) -> bool:
    if any(route.overlaps(layout.network) for route in _routes()) or Path(f"/sys/class/net/{layout.bridge}").exists():
        return False
    for port in range(layout.first_port, layout.first_port + 3):
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return False
    return True


def _routes() -> list[IPv4Network]:
    """Return where this machine's routes lead, save the default one."""
    lines = Path("/proc/net/route").read_text().splitlines()[1:]
    routes = []
    for line in lines:
        _, destination, *_, mask, _mtu, _window, _irtt = line.split()
        address, netmask = (IPv4Address(bytes.fromhex(text)[::-1]) for text in (destination, mask))
        if int(netmask):
            routes.append(IPv4Network(f"{address}/{netmask}"))
    return routes
