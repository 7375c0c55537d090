package main

import (
	"bufio"
	"encoding/binary"
	"errors"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"raftwood/benchmarks/peers/load"
)

const (
	leadersTimeout = 20 * time.Second
	leadersPoll    = 100 * time.Millisecond
	refusalsMax    = 20
)

var (
	errLost      = errors.New("the connection to a node is lost")
	errNotAcked  = errors.New("a node refused an append")
	errNoLeaders = errors.New("a group has no leader")
)

// link is one connection to a node, shared by all workers.
type link struct {
	requests chan []byte
	mutex    sync.Mutex
	next     uint64
	waiting  map[uint64]chan []byte
	lost     bool
}

func connect(address string) *link {
	connection, err := net.Dial("tcp", address)
	if err != nil {
		load.Fail(err)
	}
	opened := &link{requests: make(chan []byte, queuedFramesMax), waiting: map[uint64]chan []byte{}}
	go writeFrames(connection, opened.requests)
	go opened.readReplies(connection)
	return opened
}

func (opened *link) readReplies(connection net.Conn) {
	reader := bufio.NewReaderSize(connection, bufferBytes)
	for {
		frame, err := readFrame(reader)
		opened.mutex.Lock()
		if err != nil {
			opened.lost = true
			for _, reply := range opened.waiting {
				close(reply)
			}
			opened.mutex.Unlock()
			return
		}
		id := binary.LittleEndian.Uint64(frame)
		reply := opened.waiting[id]
		delete(opened.waiting, id)
		opened.mutex.Unlock()
		reply <- frame[8:]
	}
}

func (opened *link) call(group uint32, payload []byte) ([]byte, error) {
	reply := make(chan []byte, 1)
	opened.mutex.Lock()
	if opened.lost {
		opened.mutex.Unlock()
		return nil, errLost
	}
	opened.next++
	id := opened.next
	opened.waiting[id] = reply
	opened.mutex.Unlock()
	opened.requests <- requestFrame(id, group, payload)
	body, ok := <-reply
	if !ok {
		return nil, errLost
	}
	return body, nil
}

func (opened *link) append(group uint32, payload []byte) error {
	body, err := opened.call(group, payload)
	if err == nil && body[0] != 1 {
		err = errNotAcked
	}
	return err
}

// cluster sends each append to the node that leads its group.
type cluster struct {
	nodes   []*link
	groups  int
	leaders atomic.Pointer[[]byte]
}

func connectAll(addresses []string, groups int) *cluster {
	connected := &cluster{groups: groups}
	for _, address := range addresses {
		connected.nodes = append(connected.nodes, connect(address))
	}
	if err := connected.findLeaders(); err != nil {
		load.Fail(err)
	}
	return connected
}

// findLeaders waits for a moment at which all groups have one: many elections take turns.
func (connected *cluster) findLeaders() error {
	for end := time.Now().Add(leadersTimeout); time.Now().Before(end); time.Sleep(leadersPoll) {
		leaders, err := connected.nodes[0].call(noGroup, nil)
		if err != nil {
			return err
		}
		if len(leaders) == connected.groups && !slices.Contains(leaders, 0) {
			connected.leaders.Store(&leaders)
			return nil
		}
	}
	return errNoLeaders
}

// Append tries again where the leader has changed, as a client would; the latency includes that.
func (connected *cluster) Append(worker int, sequence int, payload []byte) error {
	// A stride of a large prime spreads the workers over all groups, in no order.
	group := (worker + sequence*7919) % connected.groups
	for range refusalsMax {
		leader := (*connected.leaders.Load())[group]
		err := connected.nodes[leader-1].append(uint32(group), payload)
		if err != errNotAcked {
			return err
		}
		if err := connected.findLeaders(); err != nil {
			return err
		}
	}
	return errNotAcked
}

func (connected *cluster) Probe(node int, payload []byte) error {
	return connected.nodes[node].append(0, payload)
}
