#!/bin/bash
# Process 1 of a node, in network, mount and PID namespaces of its own.
# usage: node_init.sh NODE_FOLDER PROGRAMS NODE_NAME NODE_ADDRESS GPUS LABELS 'MOUNT_POINT...'
set -eu
node=$1 programs=$2 name=$3 address=$4 gpus=$5 labels=$6 mount_points=$7

for folder in $mount_points; do
	mkdir -p "$node/fs/$folder"
	mount --bind "$node/fs/$folder" "$folder"
done
export PATH="$programs:$PATH" # containerd looks for its shim
mount --make-rshared / # within the node: pods with mount propagation need it
sysctl -qw net.ipv4.ip_forward=1
cp "$node/cni.conflist" /etc/cni/net.d/10-test.conflist

# Everything up to `go` happens while the API server starts.
containerd --config "$node/containerd.toml" >"$node/containerd.log" 2>&1 &
until [ -S /run/containerd/containerd.sock ]; do sleep 0.05; done
for image in "$node"/images/*.tar; do
	ctr --namespace k8s.io images import "$image" >>"$node/import.log" 2>&1
done
touch "$node/prepared"
until [ -e "$node/go" ]; do sleep 0.05; done

"$programs/kube-proxy" --config="$node/kube-proxy.yaml" --hostname-override="$name" >"$node/kube-proxy.log" 2>&1 &
[ "$gpus" = 0 ] || "$programs/fake-gpu" -count "$gpus" -unhealthy "$node/unhealthy-gpus" >"$node/fake-gpu.log" 2>&1 &
run_kubelet() { # again when it dies, unless the file `hold` is there
	while :; do
		while [ -e "$node/hold" ]; do sleep 0.1; done
		"$programs/kubelet" --config="$node/kubelet.yaml" --kubeconfig="$node/kubelet.kubeconfig" --hostname-override="$name" \
			--node-ip="$address" --node-labels="$labels" >>"$node/kubelet.log" 2>&1 || true
		sleep 0.5
	done
}
run_kubelet &
while :; do # reap the shims that containerd leaves to process 1
	wait -n || true
	sleep 0.2
done
