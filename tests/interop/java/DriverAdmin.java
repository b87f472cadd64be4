import com.alibaba.fastjson2.JSONObject;
import java.io.ByteArrayOutputStream;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.Map;
import java.util.Properties;
import java.util.TreeMap;
import org.apache.rocketmq.client.QueryResult;
import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.remoting.protocol.admin.ConsumeStats;
import org.apache.rocketmq.remoting.protocol.admin.TopicOffset;
import org.apache.rocketmq.remoting.protocol.body.ClusterInfo;
import org.apache.rocketmq.remoting.protocol.subscription.SubscriptionGroupConfig;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;
import org.apache.rocketmq.tools.command.MQAdminStartup;

/** The admin client, and {@code mqadmin} run inside this JVM with what it prints as its answer. */
final class DriverAdmin {
    private static final long ALL_TIME = Long.MAX_VALUE;
    private static final int MOST_HITS = 64;

    private final String namesrv;
    private final String broker;
    private final DefaultMQAdminExt admin = new DefaultMQAdminExt();

    DriverAdmin(String namesrv, String broker) throws Exception {
        this.namesrv = namesrv;
        this.broker = broker;
        admin.setNamesrvAddr(namesrv);
        admin.setInstanceName("driver-admin");
        admin.start();
    }

    void answer(String what, JSONObject request, ClientDriver.Answer answer) throws Exception {
        String topic = request.getString("topic");
        String group = request.getString("group");
        switch (what) {
            case "await": awaitBroker(request.getLongValue("timeoutMs")); break;
            case "topic": createTopic(topic, request); break;
            case "group": createGroup(group, request); break;
            case "offsets": offsets(topic, answer); break;
            case "progress": progress(admin.examineConsumeStats(group, topic), answer); break;
            case "view": answer.say(DriverJson.stored(admin.viewMessage(topic, request.getString("id")))); break;
            case "key": query(admin.queryMessage(topic, request.getString("key"), MOST_HITS, 0, ALL_TIME), answer); break;
            case "reset": admin.resetOffsetByTimestamp(topic, group, request.getLongValue("ms"), true)
                .forEach((queue, offset) -> answer.say(DriverJson.queue(queue).fluentPut("offset", offset))); break;
            case "consumers": admin.examineConsumerConnectionInfo(group).getConnectionSet()
                .forEach(one -> answer.say(new JSONObject().fluentPut("clientId", one.getClientId()))); break;
            case "mqadmin": answer.say(new JSONObject().fluentPut("said", mqadmin(request))); break;
            default: throw new IllegalArgumentException("unknown request " + request);
        }
    }

    /**
     * Apache's broker, when it registers before it has found the name server, tries again only after 10 s. A change of
     * its permission, even to what it is, makes it register at once; a broker that refuses it has to come by itself.
     */
    private void awaitBroker(long timeoutMs) throws Exception {
        long deadline = System.currentTimeMillis() + timeoutMs;
        while (System.currentTimeMillis() < deadline) {
            ClusterInfo cluster = admin.examineBrokerClusterInfo();
            if (cluster.getBrokerAddrTable() != null && !cluster.getBrokerAddrTable().isEmpty()) {
                return;
            }
            Properties permission = new Properties();
            permission.setProperty("brokerPermission", "6");
            try {
                admin.updateBrokerConfig(broker, permission);
            } catch (Exception refused) {
                refused.printStackTrace();
            }
            Thread.sleep(50);
        }
        throw new IllegalStateException("no broker is registered at the name server");
    }

    private void createTopic(String topic, JSONObject request) throws Exception {
        int queues = request.getIntValue("queues", 4);
        TopicConfig config = new TopicConfig(topic, queues, queues, request.getIntValue("permission", 6));
        config.setOrder(request.getBooleanValue("order"));
        admin.createAndUpdateTopicConfig(broker, config);
    }

    private void createGroup(String group, JSONObject request) throws Exception {
        SubscriptionGroupConfig config = new SubscriptionGroupConfig();
        config.setGroupName(group);
        DriverJson.configure(config, request);
        admin.createAndUpdateSubscriptionGroupConfig(broker, config);
    }

    private void offsets(String topic, ClientDriver.Answer answer) throws Exception {
        Map<MessageQueue, TopicOffset> table = new TreeMap<>(admin.examineTopicStats(broker, topic).getOffsetTable());
        table.forEach((queue, offset) -> answer.say(DriverJson.queue(queue).fluentPut("min", offset.getMinOffset())
            .fluentPut("max", offset.getMaxOffset()).fluentPut("updated", offset.getLastUpdateTimestamp())));
    }

    private static void progress(ConsumeStats stats, ClientDriver.Answer answer) {
        stats.getOffsetTable().forEach((queue, offset) -> answer.say(DriverJson.queue(queue)
            .fluentPut("broker offset", offset.getBrokerOffset()).fluentPut("consumer offset", offset.getConsumerOffset())));
    }

    private static void query(QueryResult result, ClientDriver.Answer answer) {
        for (MessageExt message : result.getMessageList()) {
            answer.say(DriverJson.stored(message));
        }
    }

    private String mqadmin(JSONObject request) {
        String[] arguments = request.getList("arguments", String.class).toArray(new String[0]);
        ByteArrayOutputStream said = new ByteArrayOutputStream();
        PrintStream capture = new PrintStream(said, true, StandardCharsets.UTF_8);
        PrintStream out = System.out;
        PrintStream err = System.err;
        System.setOut(capture);
        System.setErr(capture);  // a command that fails says why there
        try {
            System.setProperty("rocketmq.namesrv.addr", namesrv);
            MQAdminStartup.main(arguments);
        } finally {
            System.setOut(out);
            System.setErr(err);
        }
        return said.toString(StandardCharsets.UTF_8);
    }
}
