// Sends records by the Go libraries of others: `ways-in loki|fluent|syslog|elasticsearch JSON`.
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log"
	"os"
	"time"

	"github.com/RackSec/srslog"
	"github.com/elastic/go-elasticsearch/v8"
	"github.com/elastic/go-elasticsearch/v8/esutil"
	"github.com/fluent/fluent-logger-golang/fluent"
	"github.com/grafana/loki-client-go/loki"
	"github.com/grafana/loki-client-go/pkg/urlutil"
	"github.com/prometheus/common/config"
	"github.com/prometheus/common/model"
)

type given struct {
	Url      string
	Address  string
	Port     int
	Id       string
	Secret   string
	Logstore string
	Count    int
}

func must(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

func sendLoki(to given) {
	var url urlutil.URLValue
	must(url.Set(to.Url + "/loki/api/v1/push?logstore=" + to.Logstore))
	settings, err := loki.NewDefaultConfig(url.String())
	must(err)
	settings.BackoffConfig.MaxRetries = 1
	settings.Client = config.HTTPClientConfig{
		BasicAuth: &config.BasicAuth{Username: to.Id, Password: config.Secret(to.Secret)},
	}
	client, err := loki.New(settings)
	must(err)
	for number := 0; number < to.Count; number++ {
		labels := model.LabelSet{"app": "shop", "quoted": "a \"b\"\n"}
		must(client.Handle(labels, time.Now(), fmt.Sprintf("line %d", number)))
	}
	client.Stop()
}

func sendFluent(to given) {
	client, err := fluent.New(fluent.Config{
		FluentHost: "127.0.0.1", FluentPort: to.Port, RequestAck: true, SubSecondPrecision: true,
		MaxRetry: 1, ReadTimeout: 5 * time.Second,
	})
	must(err)
	for number := 0; number < to.Count; number++ {
		record := map[string]any{"line": fmt.Sprintf("line %d", number), "number": number}
		must(client.Post("shop", record))
	}
	must(client.Close())
}

func sendSyslog(to given) {
	writer, err := srslog.Dial("tcp", to.Address, srslog.LOG_NOTICE|srslog.LOG_LOCAL4, "shop")
	must(err)
	writer.SetFormatter(srslog.RFC5424Formatter)
	writer.SetFramer(srslog.RFC5425MessageLengthFramer)
	for number := 0; number < to.Count; number++ {
		must(writer.Notice(fmt.Sprintf("line %d", number)))
	}
	must(writer.Close())
}

func sendElasticsearch(to given) {
	client, err := elasticsearch.NewClient(elasticsearch.Config{
		Addresses: []string{to.Url}, Username: to.Id, Password: to.Secret,
	})
	must(err)
	indexer, err := esutil.NewBulkIndexer(esutil.BulkIndexerConfig{
		Client: client, Index: to.Logstore, NumWorkers: 1,
	})
	must(err)
	for number := 0; number < to.Count; number++ {
		document, err := json.Marshal(map[string]any{"line": fmt.Sprintf("line %d", number)})
		must(err)
		must(indexer.Add(context.Background(), esutil.BulkIndexerItem{
			Action: "create", Body: bytes.NewReader(document),
		}))
	}
	must(indexer.Close(context.Background()))
	if stats := indexer.Stats(); stats.NumFailed > 0 || stats.NumFlushed != uint64(to.Count) {
		log.Fatalf("%+v", stats)
	}
}

func main() {
	var to given
	must(json.Unmarshal([]byte(os.Args[2]), &to))
	ways := map[string]func(given){
		"loki": sendLoki, "fluent": sendFluent, "syslog": sendSyslog, "elasticsearch": sendElasticsearch,
	}
	ways[os.Args[1]](to)
}
