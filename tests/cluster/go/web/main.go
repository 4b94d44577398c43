// Command web is what the cluster's own tests run in a pod: it answers with the devices that it was given, is ready
// after a while, and says that it was told to stop. Statically linked, it is an image by itself.
package main

import (
	"context"
	"flag"
	"fmt"
	"log"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"
)

func main() {
	listen := flag.String("listen", ":8080", "address")
	readyAfter := flag.Duration("ready-after", 0, "how long /ready answers 503")
	files := flag.String("files", "/", "folder that /files/ shows")
	flag.Parse()

	started := time.Now()
	http.HandleFunc("/ready", func(response http.ResponseWriter, _ *http.Request) {
		if time.Since(started) < *readyAfter {
			response.WriteHeader(http.StatusServiceUnavailable)
		}
	})
	http.HandleFunc("/", func(response http.ResponseWriter, _ *http.Request) {
		host, _ := os.Hostname()
		fmt.Fprintf(response, "%s %s\n", host, os.Getenv("NVIDIA_VISIBLE_DEVICES"))
	})
	http.Handle("/files/", http.StripPrefix("/files/", http.FileServer(http.Dir(*files))))
	// `web get URL` is a client for pods that hold nothing else.
	if flag.Arg(0) == "get" {
		response, err := http.Get(flag.Arg(1))
		if err != nil {
			log.Fatal(err)
		}
		defer response.Body.Close()
		_, _ = os.Stdout.ReadFrom(response.Body)
		return
	}
	server := &http.Server{Addr: *listen}
	stopping, _ := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	log.Printf("serving on %s", *listen)
	go func() { log.Print(server.ListenAndServe()) }()
	<-stopping.Done()
	log.Print("told to stop")
	_ = server.Shutdown(context.Background())
}
