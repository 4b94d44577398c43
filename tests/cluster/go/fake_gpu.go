package main

import (
	"context"
	"flag"
	"fmt"
	"log"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	plugin "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

// fakeGPU is a device plugin that offers devices that are not there, so that the kubelet admits, allocates and refuses
// as it does with real ones. A device named in the file `unhealthy` (one id a line) is reported as unhealthy.
type fakeGPU struct {
	plugin.UnimplementedDevicePluginServer
	count     int
	unhealthy string
}

const devicePrefix = "GPU-fake-"

func (gpu *fakeGPU) devices() []*plugin.Device {
	text, _ := os.ReadFile(gpu.unhealthy) // no file: all are well
	bad := map[string]bool{}
	for _, id := range strings.Fields(string(text)) {
		bad[id] = true
	}
	devices := make([]*plugin.Device, 0, gpu.count)
	for number := range gpu.count {
		device := &plugin.Device{ID: fmt.Sprint(devicePrefix, number), Health: plugin.Healthy}
		if bad[device.ID] {
			device.Health = plugin.Unhealthy
		}
		devices = append(devices, device)
	}
	return devices
}

func (gpu *fakeGPU) GetDevicePluginOptions(context.Context, *plugin.Empty) (*plugin.DevicePluginOptions, error) {
	return &plugin.DevicePluginOptions{}, nil
}

func (gpu *fakeGPU) ListAndWatch(_ *plugin.Empty, stream plugin.DevicePlugin_ListAndWatchServer) error {
	sent := ""
	for {
		devices := gpu.devices()
		if now := fmt.Sprint(devices); now != sent {
			if err := stream.Send(&plugin.ListAndWatchResponse{Devices: devices}); err != nil {
				return err
			}
			sent = now
		}
		select {
		case <-stream.Context().Done():
			return nil
		case <-time.After(500 * time.Millisecond):
		}
	}
}

// Allocate sets the variables by which NVIDIA's runtime and CUDA learn which devices a container got.
func (gpu *fakeGPU) Allocate(_ context.Context, request *plugin.AllocateRequest) (*plugin.AllocateResponse, error) {
	response := &plugin.AllocateResponse{}
	for _, container := range request.ContainerRequests {
		ids := strings.Join(container.DevicesIds, ",")
		response.ContainerResponses = append(response.ContainerResponses, &plugin.ContainerAllocateResponse{
			Envs: map[string]string{
				"NVIDIA_VISIBLE_DEVICES": ids,
				"CUDA_VISIBLE_DEVICES":   strings.ReplaceAll(ids, devicePrefix, ""),
			}})
	}
	return response, nil
}

func runFakeGPU() {
	flags := flag.NewFlagSet("fake-gpu", flag.ExitOnError)
	count := flags.Int("count", 8, "devices")
	resource := flags.String("resource", "nvidia.com/gpu", "resource name")
	folder := flags.String("folder", plugin.DevicePluginPath, "the kubelet's device plugin folder")
	unhealthy := flags.String("unhealthy", "", "file with the ids of unhealthy devices")
	_ = flags.Parse(os.Args[1:])

	gpu := &fakeGPU{count: *count, unhealthy: *unhealthy}
	for { // once for each life of the kubelet, which empties the folder when it starts
		if err := gpu.serve(*folder, *resource); err != nil {
			log.Print(err)
		}
		time.Sleep(500 * time.Millisecond)
	}
}

// serve registers with the kubelet, when it is there, and returns when the kubelet has thrown the socket away.
func (gpu *fakeGPU) serve(folder, resource string) error {
	kubeletSocket := filepath.Join(folder, "kubelet.sock")
	for !exists(kubeletSocket) {
		time.Sleep(100 * time.Millisecond)
	}
	endpoint := "fake-" + strings.NewReplacer("/", "-", ".", "-").Replace(resource) + ".sock"
	socket := filepath.Join(folder, endpoint)
	_ = os.Remove(socket) // of an earlier life
	listener, err := net.Listen("unix", socket)
	if err != nil {
		return err
	}
	server := grpc.NewServer()
	defer server.Stop()
	plugin.RegisterDevicePluginServer(server, gpu)
	go func() { _ = server.Serve(listener) }()

	connection, err := grpc.NewClient("unix://"+kubeletSocket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer connection.Close()
	request := &plugin.RegisterRequest{Version: plugin.Version, Endpoint: endpoint, ResourceName: resource}
	if _, err := plugin.NewRegistrationClient(connection).Register(context.Background(), request); err != nil {
		return err
	}
	log.Printf("registered %d x %s", gpu.count, resource)
	for exists(socket) {
		time.Sleep(500 * time.Millisecond)
	}
	return nil
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}
