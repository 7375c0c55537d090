// One dragonboat node, or the load on three of them.
//
//	dragonboat node --number 1 --raft HOST:PORT,… --listen HOST:PORT --folder F --groups N
//	dragonboat load --nodes HOST:PORT,… --groups N --in-flight N --bytes N
//
// Nodes and load are processes of their own and speak the protocol of wire.go.
package main

import (
	"flag"
	"fmt"
	"os"
	"strings"

	"raftwood/benchmarks/peers/load"
)

func main() {
	if len(os.Args) < 2 || (os.Args[1] != "node" && os.Args[1] != "load") {
		load.Fail(fmt.Errorf("usage: dragonboat node|load, --help after it tells more"))
	}
	part := os.Args[1]
	os.Args = append(os.Args[:1], os.Args[2:]...)
	groups := flag.Int("groups", 1, "number of groups")
	if part == "node" {
		number := flag.Int("number", 1, "which node this is, from 1")
		raft := flag.String("raft", "", "raft's host:port of each node, separated by commas")
		listen := flag.String("listen", "", "host:port for clients")
		folder := flag.String("folder", "", "where data is kept")
		flag.Parse()
		serve(startNode(*number, strings.Split(*raft, ","), *folder, *groups), *listen)
		return
	}
	options := load.Flags()
	nodes := flag.String("nodes", "", "host:port of each node, separated by commas")
	flag.Parse()
	load.Run(options, connectAll(strings.Split(*nodes, ","), *groups))
}
