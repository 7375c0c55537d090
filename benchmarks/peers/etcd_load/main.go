// Puts into etcd through one client with one connection to the leader, N in flight.
//
// Each of the in-flight workers overwrites keys of its own, so that etcd's index stays small; with
// --get it reads them, and several keys are one transaction.
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
	// How many keys a request has.
	many int
	gets bool
}

func (system *etcd) Append(worker int, _ int, payload []byte) error {
	if system.many == 1 && !system.gets {
		return put(system.leader, system.keys[worker], payload)
	}
	ctx, cancel := context.WithTimeout(context.Background(), requestTimeout)
	defer cancel()
	if system.many == 1 {
		_, err := system.leader.Get(ctx, system.keys[worker])
		return err
	}
	operations := make([]clientv3.Op, system.many)
	for index := range operations {
		key := fmt.Sprintf("%s-%d", system.keys[worker], index)
		if system.gets {
			operations[index] = clientv3.OpGet(key)
		} else {
			operations[index] = clientv3.OpPut(key, string(payload))
		}
	}
	_, err := system.leader.Txn(ctx).Then(operations...).Commit()
	return err
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
	many := flag.Int("keys", 1, "keys of one request, in one transaction")
	gets := flag.Bool("get", false, "read keys that were written before")
	flag.Parse()
	endpoints := strings.Split(*nodes, ",")
	system := &etcd{many: *many}
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
	if *gets {
		for worker := range system.keys {
			if err := system.Append(worker, 0, make([]byte, options.Bytes)); err != nil {
				load.Fail(err)
			}
		}
		system.gets = true
	}
	load.Run(options, system)
}
