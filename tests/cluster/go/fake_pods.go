package main

import (
	"context"
	"encoding/json"
	"fmt"
	"sync/atomic"
	"time"

	core "k8s.io/api/core/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
)

// The life of a pod on a fake node is told by its annotations, all of them Go durations:
// fake/ready-after, fake/complete-after, fake/fail-after (since its start) and fake/stop-after (since its deletion).

type podQueue = workqueue.TypedRateLimitingInterface[string]

// timerSlack spares a second look at a pod whose timer fired a moment early.
const timerSlack = 50 * time.Millisecond

var podAddresses atomic.Uint32

func (fleet *fakeNodes) watchPods(informer cache.SharedIndexInformer) podQueue {
	queue := workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[string]())
	add := func(object any) {
		if pod, ok := object.(*core.Pod); ok && fleet.addresses[pod.Spec.NodeName] != "" {
			queue.Add(pod.Namespace + "/" + pod.Name)
		}
	}
	_, _ = informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    add,
		UpdateFunc: func(_, object any) { add(object) },
	})
	return queue
}

func (fleet *fakeNodes) work(ctx context.Context, queue podQueue) {
	for {
		key, quit := queue.Get()
		if quit {
			return
		}
		again, err := fleet.syncPod(ctx, key)
		switch {
		case err != nil:
			queue.AddRateLimited(key)
		case again > 0:
			queue.AddAfter(key, again)
		default:
			queue.Forget(key)
		}
		queue.Done(key)
	}
}

// syncPod does what is due for a pod, and returns after which time to look again (0: not before it changes).
func (fleet *fakeNodes) syncPod(ctx context.Context, key string) (time.Duration, error) {
	namespace, name, _ := cache.SplitMetaNamespaceKey(key)
	pod, err := fleet.pods.Pods(namespace).Get(name)
	if err != nil {
		return 0, nil // gone
	}
	if fleet.alive(pod.Spec.NodeName) == nil {
		return time.Second, nil
	}
	if pod.DeletionTimestamp != nil {
		return fleet.stopPod(ctx, pod)
	}
	if pod.Status.Phase == core.PodSucceeded || pod.Status.Phase == core.PodFailed {
		return 0, nil
	}
	phase, ready, again := wantedPhase(pod)
	if pod.Status.Phase == phase && podReady(pod) == ready && pod.Status.PodIP != "" {
		return again, nil
	}
	status := fleet.podStatus(pod, phase, ready)
	patch := must(json.Marshal(map[string]any{"metadata": map[string]any{"uid": pod.UID}, "status": status}))
	_, err = fleet.client.CoreV1().Pods(namespace).Patch(
		ctx, name, types.StrategicMergePatchType, patch, meta.PatchOptions{}, "status")
	return again, err
}

// stopPod removes a pod that is being deleted, once it has taken its time to stop.
func (fleet *fakeNodes) stopPod(ctx context.Context, pod *core.Pod) (time.Duration, error) {
	if stop, ok := annotated(pod, "stop-after"); ok {
		grace := time.Duration(0)
		if pod.DeletionGracePeriodSeconds != nil {
			grace = time.Duration(*pod.DeletionGracePeriodSeconds) * time.Second
		}
		// The time stamp is the end of the grace period.
		if wait := time.Until(pod.DeletionTimestamp.Add(-grace).Add(min(stop, grace))); wait > 0 {
			return wait, nil
		}
	}
	now := int64(0)
	return 0, fleet.client.CoreV1().Pods(pod.Namespace).Delete(ctx, pod.Name, meta.DeleteOptions{
		GracePeriodSeconds: &now, Preconditions: &meta.Preconditions{UID: &pod.UID},
	})
}

func annotated(pod *core.Pod, name string) (time.Duration, bool) {
	duration, err := time.ParseDuration(pod.Annotations["fake/"+name])
	return duration, err == nil
}

func podReady(pod *core.Pod) bool {
	for _, condition := range pod.Status.Conditions {
		if condition.Type == core.PodReady {
			return condition.Status == core.ConditionTrue
		}
	}
	return false
}

// wantedPhase returns the phase and readiness that a pod's annotations ask for now, and when that changes next.
func wantedPhase(pod *core.Pod) (phase core.PodPhase, ready bool, next time.Duration) {
	age := time.Duration(0)
	if pod.Status.StartTime != nil {
		age = time.Since(pod.Status.StartTime.Time)
	}
	due := func(name string) bool {
		after, ok := annotated(pod, name)
		if ok && age+timerSlack < after {
			if wait := after - age; next == 0 || wait < next {
				next = wait
			}
		}
		return ok && age+timerSlack >= after
	}
	_, waits := annotated(pod, "ready-after")
	phase, ready = core.PodRunning, due("ready-after") || !waits
	if due("complete-after") {
		phase, ready = core.PodSucceeded, false
	}
	if due("fail-after") {
		phase, ready = core.PodFailed, false
	}
	return phase, ready, next
}

func (fleet *fakeNodes) podStatus(pod *core.Pod, phase core.PodPhase, ready bool) core.PodStatus {
	now := meta.Now()
	started := now
	if pod.Status.StartTime != nil {
		started = *pod.Status.StartTime
	}
	address := pod.Status.PodIP
	if address == "" {
		number := podAddresses.Add(1)
		address = fmt.Sprintf("10.%d.%d.%d", 251+number/62500%4, number/250%250, number%250+1)
	}
	status := core.PodStatus{
		Phase: phase, StartTime: &started, HostIP: fleet.addresses[pod.Spec.NodeName],
		PodIP: address, PodIPs: []core.PodIP{{IP: address}},
	}
	is := map[bool]core.ConditionStatus{true: core.ConditionTrue, false: core.ConditionFalse}
	for kind, value := range map[core.PodConditionType]bool{
		core.PodReadyToStartContainers: true, core.PodInitialized: true,
		core.PodReady: ready, core.ContainersReady: ready,
	} {
		status.Conditions = append(status.Conditions,
			core.PodCondition{Type: kind, Status: is[value], LastTransitionTime: now})
	}
	running := phase == core.PodRunning
	for _, container := range pod.Spec.Containers {
		state := core.ContainerState{}
		switch phase {
		case core.PodRunning:
			state.Running = &core.ContainerStateRunning{StartedAt: started}
		case core.PodSucceeded:
			state.Terminated = &core.ContainerStateTerminated{Reason: "Completed", StartedAt: started, FinishedAt: now}
		default:
			state.Terminated = &core.ContainerStateTerminated{
				ExitCode: 1, Reason: "Error", StartedAt: started, FinishedAt: now}
		}
		status.ContainerStatuses = append(status.ContainerStatuses, core.ContainerStatus{
			Name: container.Name, Image: container.Image, ImageID: "fake", Ready: ready, Started: &running,
			ContainerID: "fake://" + string(pod.UID) + container.Name, State: state,
		})
	}
	return status
}
