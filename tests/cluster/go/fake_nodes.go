package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"log"
	"os"
	"strconv"
	"sync"
	"time"

	coordination "k8s.io/api/coordination/v1"
	core "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/clientcmd"
)

const (
	workers      = 16
	leaseSeconds = int32(40)
	leaseFolder  = "kube-node-lease"
	deadKey      = "fake/dead"
)

// fakeNodes are nodes with no kubelet behind them, for tests of scale: it renews their leases and plays the kubelet for
// the pods that the real scheduler puts on them. The node annotation fake/dead=true stops a node's lease and its pods'
// updates, as a loss of power would; taking it off brings the node back.
type fakeNodes struct {
	client    kubernetes.Interface
	addresses map[string]string // by node name; never changes
	nodes     corelisters.NodeLister
	pods      corelisters.PodLister
}

type nodeShape struct {
	prefix, cpu, memory, gpuResource string
	gpus, gpuMemoryMiB, zones        int
}

func runFakeNodes() {
	flags := flag.NewFlagSet("fake-nodes", flag.ExitOnError)
	kubeconfig := flags.String("kubeconfig", os.Getenv("KUBECONFIG"), "kubeconfig")
	count := flags.Int("count", 10, "nodes")
	every := flags.Duration("lease-every", 10*time.Second, "time between two renewals of the leases")
	shape := nodeShape{}
	flags.StringVar(&shape.prefix, "prefix", "fake-", "node name prefix")
	flags.StringVar(&shape.cpu, "cpu", "64", "CPUs of each node")
	flags.StringVar(&shape.memory, "memory", "512Gi", "memory of each node")
	flags.StringVar(&shape.gpuResource, "gpu-resource", "nvidia.com/gpu", "resource name of the GPUs")
	flags.IntVar(&shape.gpus, "gpus", 8, "GPUs of each node")
	flags.IntVar(&shape.gpuMemoryMiB, "gpu-memory-mib", 81920, "memory of each GPU, as a node label says it")
	flags.IntVar(&shape.zones, "zones", 4, "zones that the nodes are spread over")
	_ = flags.Parse(os.Args[1:])

	config := must(clientcmd.BuildConfigFromFlags("", *kubeconfig))
	config.QPS, config.Burst = 1000, 2000
	config.ContentType = "application/vnd.kubernetes.protobuf"
	fleet := &fakeNodes{client: must(kubernetes.NewForConfig(config)), addresses: map[string]string{}}
	ctx := context.Background()
	start := time.Now()
	fleet.create(ctx, *count, shape)
	log.Printf("%d nodes created in %.2fs", *count, time.Since(start).Seconds())

	everything := informers.NewSharedInformerFactory(fleet.client, 0)
	bound := informers.NewSharedInformerFactoryWithOptions(fleet.client, 0,
		informers.WithTweakListOptions(func(options *meta.ListOptions) {
			options.FieldSelector = fields.OneTermNotEqualSelector("spec.nodeName", "").String()
		}))
	fleet.nodes = everything.Core().V1().Nodes().Lister()
	fleet.pods = bound.Core().V1().Pods().Lister()
	queue := fleet.watchPods(bound.Core().V1().Pods().Informer())
	everything.Start(ctx.Done())
	bound.Start(ctx.Done())
	everything.WaitForCacheSync(ctx.Done())
	bound.WaitForCacheSync(ctx.Done())
	for range workers {
		go fleet.work(ctx, queue)
	}
	log.Printf("ready after %.2fs", time.Since(start).Seconds())
	for {
		began := time.Now()
		fleet.heartbeat(ctx)
		time.Sleep(max(*every-time.Since(began), time.Second))
	}
}

func (fleet *fakeNodes) create(ctx context.Context, count int, shape nodeShape) {
	var running sync.WaitGroup
	slots := make(chan struct{}, workers)
	for number := range count {
		node := shape.node(number)
		fleet.addresses[node.Name] = node.Status.Addresses[0].Address
		slots <- struct{}{}
		running.Go(func() {
			defer func() { <-slots }()
			if _, err := fleet.client.CoreV1().Nodes().Create(ctx, node, meta.CreateOptions{}); err != nil {
				log.Printf("node %s: %v", node.Name, err)
			}
		})
	}
	running.Wait()
}

func (shape nodeShape) node(number int) *core.Node {
	name := shape.prefix + strconv.Itoa(number)
	resources := core.ResourceList{
		core.ResourceCPU: resource.MustParse(shape.cpu), core.ResourceMemory: resource.MustParse(shape.memory),
		core.ResourcePods: resource.MustParse("250"), core.ResourceEphemeralStorage: resource.MustParse("1Ti"),
	}
	labels := map[string]string{
		"kubernetes.io/hostname": name, "kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64",
		"topology.kubernetes.io/zone": "zone-" + strconv.Itoa(number%shape.zones), "fake/node": "true",
	}
	if shape.gpus > 0 {
		resources[core.ResourceName(shape.gpuResource)] = *resource.NewQuantity(int64(shape.gpus), resource.DecimalSI)
		// What NVIDIA's GPU feature discovery writes on a node.
		labels["nvidia.com/gpu.present"] = "true"
		labels["nvidia.com/gpu.product"] = "Fake-GPU"
		labels["nvidia.com/gpu.count"] = strconv.Itoa(shape.gpus)
		labels["nvidia.com/gpu.memory"] = strconv.Itoa(shape.gpuMemoryMiB)
	}
	return &core.Node{
		ObjectMeta: meta.ObjectMeta{Name: name, Labels: labels},
		Status: core.NodeStatus{
			Capacity: resources, Allocatable: resources, Conditions: wellConditions(),
			Addresses: []core.NodeAddress{
				{Type: core.NodeInternalIP, Address: fmt.Sprintf("10.250.%d.%d", number/250, number%250+1)},
				{Type: core.NodeHostName, Address: name},
			},
			NodeInfo: core.NodeSystemInfo{KubeletVersion: "fake", OperatingSystem: "linux", Architecture: "amd64"},
		},
	}
}

func wellConditions() []core.NodeCondition {
	now := meta.Now()
	condition := func(kind core.NodeConditionType, status core.ConditionStatus) core.NodeCondition {
		return core.NodeCondition{
			Type: kind, Status: status, Reason: "Fake", Message: "no kubelet runs here",
			LastHeartbeatTime: now, LastTransitionTime: now,
		}
	}
	return []core.NodeCondition{
		condition(core.NodeReady, core.ConditionTrue), condition(core.NodeMemoryPressure, core.ConditionFalse),
		condition(core.NodeDiskPressure, core.ConditionFalse), condition(core.NodePIDPressure, core.ConditionFalse),
	}
}

// alive returns a node that is there and not declared dead, or nil.
func (fleet *fakeNodes) alive(name string) *core.Node {
	node, err := fleet.nodes.Get(name)
	if err != nil || node.Annotations[deadKey] == "true" {
		return nil
	}
	return node
}

// heartbeat renews every lease, and says again that a node is well where the node controller lost faith in it: that
// happens on a busy machine, and only a kubelet's report undoes it.
func (fleet *fakeNodes) heartbeat(ctx context.Context) {
	for name := range fleet.addresses {
		node := fleet.alive(name)
		if node == nil {
			continue
		}
		if err := fleet.renew(ctx, node); err != nil {
			log.Printf("lease of %s: %v", name, err)
		}
		if isReady(node) {
			continue
		}
		patch := must(json.Marshal(map[string]any{"status": map[string]any{"conditions": wellConditions()}}))
		if _, err := fleet.client.CoreV1().Nodes().PatchStatus(ctx, name, patch); err != nil {
			log.Printf("status of %s: %v", name, err)
		}
	}
}

func isReady(node *core.Node) bool {
	for _, condition := range node.Status.Conditions {
		if condition.Type == core.NodeReady {
			return condition.Status == core.ConditionTrue
		}
	}
	return false
}

// renew patches, as an update would need the lease's resource version.
func (fleet *fakeNodes) renew(ctx context.Context, node *core.Node) error {
	now, seconds := meta.NewMicroTime(time.Now()), leaseSeconds
	lease := &coordination.Lease{
		ObjectMeta: meta.ObjectMeta{
			Name: node.Name, Namespace: leaseFolder,
			OwnerReferences: []meta.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: node.Name, UID: node.UID}},
		},
		Spec: coordination.LeaseSpec{HolderIdentity: &node.Name, LeaseDurationSeconds: &seconds, RenewTime: &now},
	}
	leases := fleet.client.CoordinationV1().Leases(leaseFolder)
	patch := must(json.Marshal(map[string]any{"spec": lease.Spec}))
	if _, err := leases.Patch(ctx, node.Name, types.MergePatchType, patch, meta.PatchOptions{}); err == nil {
		return nil
	}
	_, err := leases.Create(ctx, lease, meta.CreateOptions{})
	return err
}
