"""Names and addresses of clusters never meet, and fit where they must."""

from ipaddress import IPv4Address, IPv4Network
from itertools import combinations

from tests.cluster.layout import FIRST_NUMBER, LAST_NUMBER, Layout

LAYOUTS = [Layout("test", number, node_count=3, gpus=4) for number in (FIRST_NUMBER, FIRST_NUMBER + 1, LAST_NUMBER)]
LONGEST_DEVICE_NAME = 15


def ports(layout: Layout) -> set[str]:
    return {layout.etcd_url, layout.etcd_peer_url, layout.url}


def test_clusters_share_nothing() -> None:
    for one, other in combinations(LAYOUTS, 2):
        assert not one.network.overlaps(other.network)
        assert not ports(one) & ports(other)
        assert not {node.cgroup for node in one.nodes} & {node.cgroup for node in other.nodes}


def test_addresses_lie_in_the_cluster_and_apart() -> None:
    for layout in LAYOUTS:
        pods, services = IPv4Network(layout.pod_network), IPv4Network(layout.service_network)
        assert pods.subnet_of(layout.network)
        assert services.subnet_of(layout.network)
        assert not pods.overlaps(services)
        assert IPv4Address(layout.service_address) == services[1]
        for node in layout.nodes:
            assert IPv4Network(node.pod_network).subnet_of(pods)
            assert IPv4Address(node.address) not in pods


def test_device_names_fit() -> None:
    names = [name for layout in LAYOUTS for name in (layout.bridge, *(node.host_device for node in layout.nodes))]
    assert max(map(len, names)) <= LONGEST_DEVICE_NAME
