"""The names, addresses and ports of a cluster: all follow from its name, its number and how many nodes it has."""

from dataclasses import dataclass
from functools import cached_property
from ipaddress import IPv4Network

FIRST_NUMBER = 101
LAST_NUMBER = 199
_PREFIX = "pft"  # network devices have 15 characters at most
_FIRST_PORT = 19000  # below what `pagefleet play` gives to engines (20000), far below outgoing connections (32768)
_PORTS_EACH = 10


@dataclass(frozen=True)
class NodeLayout:
    """A node's names and addresses."""

    name: str
    address: str
    pod_network: str
    network_namespace: str
    host_device: str
    cgroup: str


@dataclass(frozen=True)
class Layout:
    """A cluster's names, addresses and ports. Cluster number N owns 10.N.0.0/16."""

    name: str
    number: int
    node_count: int
    gpus: int
    """Fake GPUs of each node."""

    @property
    def network(self) -> IPv4Network:
        """All addresses of the cluster."""
        return IPv4Network(f"10.{self.number}.0.0/16")

    @property
    def host_address(self) -> str:
        """Where the control plane and the DNS server listen; with nodes, also this machine as pods see it."""
        return f"10.{self.number}.0.1" if self.node_count else "127.0.0.1"

    @property
    def pod_network(self) -> str:
        """Addresses of pods, and of nothing else: kube-proxy masquerades the rest."""
        return f"10.{self.number}.64.0/18"

    @property
    def service_network(self) -> str:
        """Room for 4,000 Services: tests of scale make more than the 1,000 that a /22 holds."""
        return f"10.{self.number}.192.0/20"

    @property
    def service_address(self) -> str:
        """The address of the Service `kubernetes`, the first of the range."""
        return f"10.{self.number}.192.1"

    @property
    def first_port(self) -> int:
        """The first of the ports on this machine that belong to the cluster."""
        return _FIRST_PORT + _PORTS_EACH * (self.number - 100)

    @property
    def etcd_url(self) -> str:
        """Where etcd serves the API server."""
        return f"http://127.0.0.1:{self.first_port}"

    @property
    def etcd_peer_url(self) -> str:
        """Where etcd would meet its peers; it must have such an address."""
        return f"http://127.0.0.1:{self.first_port + 1}"

    @property
    def api_port(self) -> int:
        """The API server's port."""
        return self.first_port + 2

    @property
    def url(self) -> str:
        """The API server's URL."""
        return f"https://{self.host_address}:{self.api_port}"

    @property
    def bridge(self) -> str:
        """The network device that connects the nodes with this machine."""
        return f"{_PREFIX}{self.number}"

    @cached_property
    def nodes(self) -> tuple[NodeLayout, ...]:
        """The nodes."""
        return tuple(
            NodeLayout(
                name=f"{self.name}-{place}",
                address=f"10.{self.number}.0.{10 + place}",
                pod_network=f"10.{self.number}.{64 + place}.0/24",
                network_namespace=f"{self.bridge}n{place}",
                host_device=f"{self.bridge}v{place}",
                cgroup=f"/pagefleet-{self.bridge}n{place}",
            )
            for place in range(1, self.node_count + 1)
        )
