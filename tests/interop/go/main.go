// SLS's Go SDK as it is, against a gateway that stands in as its HTTP proxy (http_proxy).
//
//	sls-go calls '{"id": …, "secret": …, "project": …, "logstore": …}'   makes every call once
//	sls-go consume '{…, "group": …, "consumer": …, "heartbeat_s": 1, "order": true}'
//
// A consumer prints a line of JSON for what it is handed at once, and ends in order on SIGTERM.
package main

import (
	"encoding/json"
	"fmt"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	sls "github.com/aliyun/aliyun-log-go-sdk"
	consumer "github.com/aliyun/aliyun-log-go-sdk/consumer"
)

const endpoint = "http://sls.test"

type given struct {
	Id         string `json:"id"`
	Secret     string `json:"secret"`
	Project    string `json:"project"`
	Logstore   string `json:"logstore"`
	Group      string `json:"group"`
	Consumer   string `json:"consumer"`
	HeartbeatS int    `json:"heartbeat_s"`
	Order      bool   `json:"order"`
}

type batch struct {
	Shard  int      `json:"shard"`
	Values []string `json:"values"`
}

type result struct {
	Pulled      []string `json:"pulled"`
	Shards      []string `json:"shards"`
	Split       int      `json:"split"`
	Groups      []string `json:"groups"`
	Held        []int    `json:"held"`
	Checkpoints []string `json:"checkpoints"`
	Error       string   `json:"error"`
}

func must[T any](value T, err error) T {
	check(err)
	return value
}

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func values(list *sls.LogGroupList) []string {
	found := []string{}
	for _, group := range list.LogGroups {
		for _, log := range group.Logs {
			for _, content := range log.Contents {
				found = append(found, content.GetValue())
			}
		}
	}
	return found
}

func group(value string) *sls.LogGroup {
	now, key, topic, source := uint32(time.Now().Unix()), "message", "a topic", "a source"
	content := &sls.LogContent{Key: &key, Value: &value}
	log := &sls.Log{Time: &now, Contents: []*sls.LogContent{content}}
	return &sls.LogGroup{Topic: &topic, Source: &source, Logs: []*sls.Log{log}}
}

func calls(of given) {
	client := sls.CreateNormalInterface(endpoint, of.Id, of.Secret, "")
	must(client.CreateProject(of.Project, "of the test"))
	check(client.CreateLogStore(of.Project, of.Logstore, 7, 1, false, 64))

	found := result{Groups: []string{}, Pulled: []string{}}
	check(client.PutLogs(of.Project, of.Logstore, group("lz4")))
	check(client.PutLogsWithCompressType(of.Project, of.Logstore, group("zstd"), sls.Compress_ZSTD))
	check(client.PutLogsWithCompressType(of.Project, of.Logstore, group("plain"), sls.Compress_None))
	key := "00000000000000000000000000000001"
	check(client.PostLogStoreLogs(of.Project, of.Logstore, group("by key"), &key))

	cursor := must(client.GetCursor(of.Project, of.Logstore, 0, "begin"))
	end := must(client.GetCursor(of.Project, of.Logstore, 0, "end"))
	must(client.GetCursorTime(of.Project, of.Logstore, 0, cursor))
	for cursor != end {
		list, next, err := client.PullLogs(of.Project, of.Logstore, 0, cursor, end, 2)
		check(err)
		found.Pulled = append(found.Pulled, values(list)...)
		cursor = next
	}
	found.Split = len(must(client.SplitShard(of.Project, of.Logstore, 0, "")))
	for _, shard := range must(client.ListShards(of.Project, of.Logstore)) {
		found.Shards = append(found.Shards, fmt.Sprintf("%d %s", shard.ShardID, shard.Status))
	}

	readers := sls.ConsumerGroup{ConsumerGroupName: "readers", Timeout: 30, InOrder: true}
	check(client.CreateConsumerGroup(of.Project, of.Logstore, readers))
	err := client.CreateConsumerGroup(of.Project, of.Logstore, readers)
	if failure, is := err.(*sls.Error); is {
		found.Error = failure.Code
	}
	for _, each := range must(client.ListConsumerGroup(of.Project, of.Logstore)) {
		found.Groups = append(found.Groups, each.ConsumerGroupName)
	}
	found.Held = must(client.HeartBeat(of.Project, of.Logstore, "readers", "go", []int{}))
	check(client.UpdateCheckpoint(of.Project, of.Logstore, "readers", "go", 0, end, true))
	for _, each := range must(client.GetCheckpoint(of.Project, of.Logstore, "readers")) {
		found.Checkpoints = append(found.Checkpoints, each.CheckPoint)
	}
	must(client.HeartBeat(of.Project, of.Logstore, "readers", "go", []int{0}))
	found.Held = append(found.Held, must(client.HeartBeat(of.Project, of.Logstore, "readers", "go", []int{}))...)
	check(client.DeleteConsumerGroup(of.Project, of.Logstore, "readers"))
	fmt.Println(string(must(json.Marshal(found))))
}

func consume(of given) {
	var lock sync.Mutex
	option := consumer.LogHubConfig{
		Endpoint:                  endpoint,
		AccessKeyID:               of.Id,
		AccessKeySecret:           of.Secret,
		Project:                   of.Project,
		Logstore:                  of.Logstore,
		ConsumerGroupName:         of.Group,
		ConsumerName:              of.Consumer,
		CursorPosition:            consumer.BEGIN_CURSOR,
		HeartbeatIntervalInSecond: of.HeartbeatS,
		HeartbeatTimeoutInSecond:  2 * of.HeartbeatS,
		DataFetchIntervalInMs:     100,
		InOrder:                   of.Order,
		AllowLogLevel:             "error",
	}
	process := func(shard int, list *sls.LogGroupList, tracker consumer.CheckPointTracker) (string, error) {
		line := must(json.Marshal(batch{shard, values(list)}))
		lock.Lock()
		fmt.Println(string(line))
		lock.Unlock()
		return "", tracker.SaveCheckPoint(true)
	}
	worker := consumer.InitConsumerWorkerWithCheckpointTracker(option, process)
	worker.Start()
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGTERM)
	<-stop
	worker.StopAndWait()
}

func main() {
	var of given
	check(json.Unmarshal([]byte(os.Args[2]), &of))
	switch os.Args[1] {
	case "calls":
		calls(of)
	case "consume":
		consume(of)
	}
}
