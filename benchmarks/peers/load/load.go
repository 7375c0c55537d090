// Package load keeps appends in flight on a system and says on standard output how that went.
//
// A run prints {"event":"warm"} once it is warm, so that the CPU of the nodes can be read at that
// moment, and one line with the figures at its end; see Result and Failover for their fields.
package load

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"slices"
	"sync"
	"syscall"
	"time"
)

// System is what a load is run against; both methods are called from many goroutines.
type System interface {
	// Append writes one payload through the leader and returns once it is acked.
	Append(worker int, sequence int, payload []byte) error
	// Probe is an append through any one of the nodes, one that may have no leader or be dead.
	Probe(node int, payload []byte) error
}

// Options are the flags that each load program has.
type Options struct {
	InFlight int
	Bytes    int
	Warm     time.Duration
	Seconds  time.Duration
	Kill     int
}

// Result is what a run without --kill prints.
type Result struct {
	Event     string  `json:"event"`
	Count     int     `json:"count"`
	ElapsedS  float64 `json:"elapsed_s"`
	P50Ms     float64 `json:"p50_ms"`
	P99Ms     float64 `json:"p99_ms"`
	ClientCPU float64 `json:"client_cpu_s"`
}

// Failover is what a run with --kill prints.
type Failover struct {
	Event      string  `json:"event"`
	FirstAckMs float64 `json:"first_ack_ms"`
}

const (
	probeEvery   = 5 * time.Millisecond
	probeAtMost  = 20 * time.Second
	nodesOfProbe = 3
)

// Flags declares the options; they hold once flag.Parse was called.
func Flags() *Options {
	options := &Options{}
	flag.IntVar(&options.InFlight, "in-flight", 1, "appends in flight at any moment")
	flag.IntVar(&options.Bytes, "bytes", 100, "bytes of one payload")
	flag.DurationVar(&options.Warm, "warm", 2*time.Second, "time before the measurement")
	flag.DurationVar(&options.Seconds, "seconds", 6*time.Second, "time of the measurement")
	flag.IntVar(&options.Kill, "kill", 0, "kill this process when warm, time the first acked write")
	return options
}

// Run does what the options ask for and prints its outcome.
func Run(options *Options, system System) {
	if options.Kill != 0 {
		emit(failover(options, system))
	} else {
		emit(measure(options, system))
	}
}

// Fail ends the program with a message.
func Fail(err error) {
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}

func measure(options *Options, system System) Result {
	warm := time.Now().Add(options.Warm)
	end := warm.Add(options.Seconds)
	latencies := make([][]time.Duration, options.InFlight)
	var workers sync.WaitGroup
	for worker := range options.InFlight {
		workers.Add(1)
		go func() {
			defer workers.Done()
			payload := payloadOf(options.Bytes)
			for sequence := 0; ; sequence++ {
				sent := time.Now()
				if sent.After(end) {
					return
				}
				if err := system.Append(worker, sequence, payload); err != nil {
					Fail(err)
				}
				if sent.After(warm) {
					latencies[worker] = append(latencies[worker], time.Since(sent))
				}
			}
		}()
	}
	time.Sleep(time.Until(warm))
	emit(map[string]string{"event": "warm"})
	cpu := cpuSeconds()
	workers.Wait()
	all := slices.Concat(latencies...)
	if len(all) == 0 {
		Fail(fmt.Errorf("no append was acked in %s", options.Seconds))
	}
	slices.Sort(all)
	return Result{
		Event:     "result",
		Count:     len(all),
		ElapsedS:  time.Since(warm).Seconds(),
		P50Ms:     milliseconds(all[len(all)/2]),
		P99Ms:     milliseconds(all[len(all)*99/100]),
		ClientCPU: cpuSeconds() - cpu,
	}
}

// failover kills a process under load, then sends a probe every few milliseconds to one node after
// the other: the first acked of those counts. No probe waits for another, so it is the cluster's
// time that is measured and not a client's patience.
func failover(options *Options, system System) Failover {
	payload := payloadOf(options.Bytes)
	stop := make(chan struct{})
	for worker := range options.InFlight {
		go func() {
			for sequence := 0; ; sequence++ {
				select {
				case <-stop:
					return
				default:
				}
				// What the kill does to an append in flight is no concern of the measurement.
				if system.Append(worker, sequence, payload) != nil {
					return
				}
			}
		}()
	}
	time.Sleep(options.Warm)
	emit(map[string]string{"event": "warm"})
	if err := syscall.Kill(options.Kill, syscall.SIGKILL); err != nil {
		Fail(fmt.Errorf("cannot kill process %d: %w", options.Kill, err))
	}
	killed := time.Now()
	close(stop)
	acked := make(chan time.Duration, int(probeAtMost/probeEvery)+1)
	probes := time.NewTicker(probeEvery)
	defer probes.Stop()
	for node := 0; time.Since(killed) < probeAtMost; node++ {
		go func() {
			if system.Probe(node%nodesOfProbe, payload) == nil {
				acked <- time.Since(killed)
			}
		}()
		select {
		case took := <-acked:
			return Failover{Event: "failover", FirstAckMs: milliseconds(took)}
		case <-probes.C:
		}
	}
	Fail(fmt.Errorf("no write was acked within %s of the leader's death", probeAtMost))
	return Failover{}
}

func payloadOf(size int) []byte {
	payload := make([]byte, size)
	for index := range payload {
		payload[index] = byte(index*31 + index>>8)
	}
	return payload
}

func cpuSeconds() float64 {
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		Fail(err)
	}
	return float64(usage.Utime.Nano()+usage.Stime.Nano()) / 1e9
}

func milliseconds(duration time.Duration) float64 {
	return float64(duration.Nanoseconds()) / 1e6
}

func emit(line any) {
	if err := json.NewEncoder(os.Stdout).Encode(line); err != nil {
		Fail(err)
	}
}
