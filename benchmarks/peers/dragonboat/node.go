package main

import (
	"io"
	"runtime"

	"github.com/lni/dragonboat/v4"
	"github.com/lni/dragonboat/v4/client"
	"github.com/lni/dragonboat/v4/config"
	"github.com/lni/dragonboat/v4/logger"
	"github.com/lni/dragonboat/v4/plugin/tan"
	"github.com/lni/dragonboat/v4/statemachine"

	"raftwood/benchmarks/peers/load"
)

// The intervals of etcd's defaults: heartbeats each 100 ms, election after 1 s. A finer tick gives the
// same intervals but visits each group more often: 256 groups reach half as many appends with 10 ms.
const (
	rttMillisecond = 100
	heartbeatRTT   = 1
	electionRTT    = 10
)

// The default of 16 workers and 16 logs is for large machines: on two cores, 256 groups reach two to
// three times as many appends with two of each.
const workersMax = 16

// counter is a state machine that costs nothing: it counts what it was given.
type counter struct{ count uint64 }

func (state *counter) Update(statemachine.Entry) (statemachine.Result, error) {
	state.count++
	return statemachine.Result{Value: state.count}, nil
}

func (state *counter) Lookup(any) (any, error) { return state.count, nil }

// Snapshots are off (SnapshotEntries is 0), so the two below are never called.
func (state *counter) SaveSnapshot(
	io.Writer, statemachine.ISnapshotFileCollection, <-chan struct{},
) error {
	return nil
}

func (state *counter) RecoverFromSnapshot(
	io.Reader, []statemachine.SnapshotFile, <-chan struct{},
) error {
	return nil
}

func (state *counter) Close() error { return nil }

type node struct {
	host     *dragonboat.NodeHost
	sessions []*client.Session
}

// startNode keeps one group in Tan and many in the default log database, Pebble: Tan's public factory
// gives each group a log of its own and 64 MB of disk from the start.
func startNode(number int, addresses []string, folder string, groups int) *node {
	for _, name := range []string{"raft", "rsm", "transport", "grpc", "dragonboat", "logdb", "tan"} {
		logger.GetLogger(name).SetLevel(logger.ERROR)
	}
	workers := uint64(min(runtime.NumCPU(), workersMax))
	logs := config.GetDefaultLogDBConfig()
	logs.Shards = workers
	engine := config.GetDefaultEngineConfig()
	engine.ExecShards, engine.CommitShards, engine.ApplyShards = workers, workers, workers
	expert := config.ExpertConfig{Engine: engine, LogDB: logs}
	if groups == 1 {
		expert.LogDBFactory = tan.Factory
	}
	host, err := dragonboat.NewNodeHost(config.NodeHostConfig{
		NodeHostDir:    folder,
		WALDir:         folder,
		RTTMillisecond: rttMillisecond,
		RaftAddress:    addresses[number-1],
		Expert:         expert,
	})
	if err != nil {
		load.Fail(err)
	}
	members := map[uint64]dragonboat.Target{}
	for index, address := range addresses {
		members[uint64(index+1)] = address
	}
	started := &node{host: host}
	create := func(uint64, uint64) statemachine.IStateMachine { return &counter{} }
	for group := range groups {
		shard := uint64(group + 1)
		err := host.StartReplica(members, false, create, config.Config{
			ReplicaID:    uint64(number),
			ShardID:      shard,
			ElectionRTT:  electionRTT,
			HeartbeatRTT: heartbeatRTT,
			CheckQuorum:  true,
		})
		if err != nil {
			load.Fail(err)
		}
		started.sessions = append(started.sessions, host.GetNoOPSession(shard))
	}
	return started
}

// leaders gives, for each group, the number of the node that leads it, or zero.
func (started *node) leaders() []byte {
	found := make([]byte, len(started.sessions))
	for group := range found {
		leader, _, valid, err := started.host.GetLeaderID(uint64(group + 1))
		if err == nil && valid {
			found[group] = byte(leader)
		}
	}
	return found
}
