// Puts into etcd through one client with one connection to the leader, N in flight.
//
// Each of the in-flight workers overwrites a key of its own, so that etcd's index stays small.
package main

import (
	"context"
	"flag"
	"fmt"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"raftwood/benchmarks/peers/load"
)

const requestTimeout = 20 * time.Second

type etcd struct {
	leader *clientv3.Client
	// One client per node, so that a probe reaches the node that it is meant for.
	nodes []*clientv3.Client
	keys  []string
}

func (system *etcd) Append(worker int, _ int, payload []byte) error {
	return put(system.leader, system.keys[worker], payload)
}

func (system *etcd) Probe(node int, payload []byte) error {
	return put(system.nodes[node], "probe", payload)
}

func put(client *clientv3.Client, key string, payload []byte) error {
	ctx, cancel := context.WithTimeout(context.Background(), requestTimeout)
	defer cancel()
	_, err := client.Put(ctx, key, string(payload))
	return err
}

func connect(endpoints ...string) *clientv3.Client {
	client, err := clientv3.New(clientv3.Config{
		Endpoints: endpoints,
		Logger:    zap.NewNop(),
	})
	if err != nil {
		load.Fail(err)
	}
	return client
}

func main() {
	options := load.Flags()
	nodes := flag.String("nodes", "", "host:port of each node, separated by commas")
	leader := flag.Int("leader", 0, "which of the nodes leads")
	oneClient := flag.Bool("one-client", false, "one client that knows all nodes, also for probes")
	flag.Parse()
	endpoints := strings.Split(*nodes, ",")
	system := &etcd{}
	if *oneClient {
		all := connect(endpoints...)
		system.leader, system.nodes = all, []*clientv3.Client{all, all, all}
	} else {
		for _, endpoint := range endpoints {
			system.nodes = append(system.nodes, connect(endpoint))
		}
		system.leader = system.nodes[*leader]
	}
	for worker := range options.InFlight {
		system.keys = append(system.keys, fmt.Sprintf("k%d", worker))
	}
	load.Run(options, system)
}
