// SLS's Java SDK as it is, against a gateway.
//
//   java … Sls calls '{"id": …, "secret": …, "project": …, "logstore": …, "proxy": "host:port"}'
//   java … Sls consume '{…, "group": …, "consumer": …, "heartbeat_s": 1, "order": true}'
//
// Calls go through the gateway as an HTTP proxy. The consumer library takes none, nor a port, so
// the gateway listens on port 80, and the JVM finds its made-up name in a file
// (jdk.net.hosts.file).
// A consumer prints a line of JSON for what it is handed at once, and ends in order on SIGTERM.

import com.alibaba.fastjson.JSON;
import com.alibaba.fastjson.JSONObject;
import com.aliyun.openservices.log.Client;
import com.aliyun.openservices.log.common.Consts.CursorMode;
import com.aliyun.openservices.log.common.ConsumerGroup;
import com.aliyun.openservices.log.common.ConsumerGroupShardCheckPoint;
import com.aliyun.openservices.log.common.FastLog;
import com.aliyun.openservices.log.common.FastLogGroup;
import com.aliyun.openservices.log.common.LogGroupData;
import com.aliyun.openservices.log.common.LogItem;
import com.aliyun.openservices.log.common.LogStore;
import com.aliyun.openservices.log.common.Shard;
import com.aliyun.openservices.log.exception.LogException;
import com.aliyun.openservices.log.http.client.ClientConfiguration;
import com.aliyun.openservices.log.request.PullLogsRequest;
import com.aliyun.openservices.log.response.PullLogsResponse;
import com.aliyun.openservices.loghub.client.ClientWorker;
import com.aliyun.openservices.loghub.client.ILogHubCheckPointTracker;
import com.aliyun.openservices.loghub.client.config.LogHubConfig;
import com.aliyun.openservices.loghub.client.exceptions.LogHubCheckPointException;
import com.aliyun.openservices.loghub.client.interfaces.ILogHubProcessor;
import java.util.ArrayList;
import java.util.List;

public final class Sls {
    private static final String ENDPOINT = "http://sls.test";

    public static void main(String[] arguments) throws Exception {
        JSONObject given = JSON.parseObject(arguments[1]);
        if (arguments[0].equals("calls")) {
            calls(given);
        } else {
            consume(given);
        }
    }

    private static List<String> values(List<LogGroupData> groups) {
        List<String> found = new ArrayList<>();
        for (LogGroupData each : groups) {
            FastLogGroup group = each.GetFastLogGroup();
            for (int place = 0; place < group.getLogsCount(); place++) {
                FastLog log = group.getLogs(place);
                for (int content = 0; content < log.getContentsCount(); content++) {
                    found.add(log.getContents(content).getValue());
                }
            }
        }
        return found;
    }

    private static List<LogItem> items(String value) {
        LogItem item = new LogItem((int) (System.currentTimeMillis() / 1000));
        item.PushBack("message", value);
        return List.of(item);
    }

    private static void calls(JSONObject given) throws LogException {
        String project = given.getString("project");
        String logstore = given.getString("logstore");
        String[] proxy = given.getString("proxy").split(":");
        ClientConfiguration configuration = new ClientConfiguration();
        configuration.setProxyHost(proxy[0]);
        configuration.setProxyPort(Integer.parseInt(proxy[1]));
        Client client =
                new Client(
                        ENDPOINT,
                        given.getString("id"),
                        given.getString("secret"),
                        configuration);
        client.CreateProject(project, "of the test");
        client.CreateLogStore(project, new LogStore(logstore, 7, 1));
        JSONObject found = new JSONObject();

        client.PutLogs(project, logstore, "a topic", items("lz4"), "a source");
        String key = "00000000000000000000000000000001";
        client.PutLogs(project, logstore, "a topic", items("by key"), "a source", key);
        String cursor = client.GetCursor(project, logstore, 0, CursorMode.BEGIN).GetCursor();
        String end = client.GetCursor(project, logstore, 0, CursorMode.END).GetCursor();
        List<String> pulled = new ArrayList<>();
        while (!cursor.equals(end)) {
            PullLogsRequest request = new PullLogsRequest(project, logstore, 0, 1, cursor, end);
            PullLogsResponse response = client.pullLogs(request);
            pulled.addAll(values(response.getLogGroups()));
            cursor = response.getNextCursor();
        }
        found.put("pulled", pulled);

        found.put("split", client.SplitShard(project, logstore, 0, key).GetShards().size());
        List<String> shards = new ArrayList<>();
        for (Shard each : client.ListShard(project, logstore).GetShards()) {
            shards.add(each.GetShardId() + " " + each.getStatus());
        }
        found.put("shards", shards);

        ConsumerGroup readers = new ConsumerGroup("readers", 30, true);
        client.CreateConsumerGroup(project, logstore, readers);
        try {
            client.CreateConsumerGroup(project, logstore, readers);
        } catch (LogException failure) {
            found.put("error", failure.GetErrorCode());
        }
        List<String> groups = new ArrayList<>();
        for (ConsumerGroup each : client.ListConsumerGroup(project, logstore).GetConsumerGroups()) {
            groups.add(each.getConsumerGroupName());
        }
        found.put("groups", groups);
        List<Integer> held = new ArrayList<>();
        held.addAll(beat(client, project, logstore, List.of()));
        client.UpdateCheckPoint(project, logstore, "readers", "java", 0, end);
        try {
            client.UpdateCheckPoint(project, logstore, "readers", "other", 0, end);
        } catch (LogException failure) {
            found.put("fenced", failure.GetErrorCode());
        }
        List<String> checkpoints = new ArrayList<>();
        for (ConsumerGroupShardCheckPoint each :
                client.GetCheckPoint(project, logstore, "readers").getCheckPoints()) {
            checkpoints.add(each.getCheckPoint());
        }
        found.put("checkpoints", checkpoints);
        beat(client, project, logstore, List.of(0));
        held.addAll(beat(client, project, logstore, List.of()));
        found.put("held", held);
        client.DeleteConsumerGroup(project, logstore, "readers");
        System.out.println(found.toJSONString());
        client.shutdown();
    }

    private static List<Integer> beat(
            Client client, String project, String logstore, List<Integer> held)
            throws LogException {
        return client.HeartBeat(project, logstore, "readers", "java", new ArrayList<>(held))
                .getShards();
    }

    private static void consume(JSONObject given) throws Exception {
        int seconds = given.getIntValue("heartbeat_s");
        LogHubConfig config =
                new LogHubConfig(
                        given.getString("group"),
                        given.getString("consumer"),
                        ENDPOINT,
                        given.getString("project"),
                        given.getString("logstore"),
                        given.getString("id"),
                        given.getString("secret"),
                        LogHubConfig.ConsumePosition.BEGIN_CURSOR);
        config.setHeartBeatIntervalMillis(1000L * seconds);
        config.setTimeoutInSeconds(2 * seconds);
        config.setFetchIntervalMillis(100);
        config.setConsumeInOrder(given.getBooleanValue("order"));
        ClientWorker worker = new ClientWorker(Printer::new, config);
        Thread thread = new Thread(worker);
        thread.start();
        Runtime.getRuntime().addShutdownHook(new Thread(() -> end(worker, thread)));
        thread.join();
    }

    private static void end(ClientWorker worker, Thread thread) {
        worker.shutdown();
        try {
            thread.join(20_000);
        } catch (InterruptedException failure) {
            Thread.currentThread().interrupt();
        }
        Runtime.getRuntime().halt(thread.isAlive() ? 1 : 0);
    }

    private static final class Printer implements ILogHubProcessor {
        private int shard;

        @Override
        public void initialize(int number) {
            shard = number;
        }

        @Override
        public String process(List<LogGroupData> groups, ILogHubCheckPointTracker tracker) {
            JSONObject line = new JSONObject();
            line.put("shard", shard);
            line.put("values", values(groups));
            System.out.println(line.toJSONString());
            save(tracker);
            return null;
        }

        @Override
        public void shutdown(ILogHubCheckPointTracker tracker) {
            save(tracker);
        }

        private void save(ILogHubCheckPointTracker tracker) {
            try {
                tracker.saveCheckPoint(true);
            } catch (LogHubCheckPointException failure) {
                System.err.println(failure);
            }
        }
    }
}
