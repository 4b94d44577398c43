// Command coredns is CoreDNS with the few plugins that a test cluster needs. It is a module of its own: it wants newer
// versions of shared modules than Kubernetes does, and puts flags on the global flag set.
package main

import (
	_ "github.com/coredns/coredns/plugin/bind"
	_ "github.com/coredns/coredns/plugin/errors"
	_ "github.com/coredns/coredns/plugin/kubernetes"
	_ "github.com/coredns/coredns/plugin/ready"

	"github.com/coredns/coredns/coremain"
)

func main() { coremain.Run() }
