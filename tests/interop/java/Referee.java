import com.alibaba.fastjson2.JSON;
import com.alibaba.fastjson2.JSONArray;
import com.alibaba.fastjson2.JSONObject;
import com.alibaba.fastjson2.JSONWriter;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.net.InetSocketAddress;
import java.net.SocketAddress;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Base64;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.TreeMap;
import org.apache.rocketmq.client.QueryResult;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.client.consumer.PullStatus;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.impl.MQAdminImpl;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.MixAll;
import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.common.constant.PermName;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageConst;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.common.message.MessageClientExt;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageId;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.remoting.protocol.ResponseCode;
import org.apache.rocketmq.remoting.protocol.body.ClusterInfo;
import org.apache.rocketmq.remoting.protocol.route.BrokerData;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;

/**
 * Asks a running broker questions through the official Java client, many in one JVM.
 *
 * <p>{@code java Referee NAMESRV BROKER}: each line on stdin is one JSON request with a field {@code do};
 * it is answered on stdout by any number of JSON lines and then by exactly one line that holds
 * {@code done} or {@code error}. Nothing else is ever written to stdout. Ends at end of input.
 *
 * <p>The cluster behind NAMESRV must have one broker. Consumer groups keep their offsets and no group
 * is made: the client's own TOOLS_CONSUMER pulls. Of it the broker does leave traces, its retry topic
 * in topics.json and its pull offsets in consumerOffset.json.
 */
public final class Referee {
    private static final int PULL_BATCH = 32;
    /** The broker caps an index answer at this many messages (maxMsgsNumBatch). */
    private static final int INDEX_BATCH = 64;
    private static final long ALL_TIME = Long.MAX_VALUE;
    private static final long REGISTER_TIMEOUT_MS = 30_000;
    private static final long POLL_INTERVAL_MS = 50;

    private final PrintStream answers;
    private final DefaultMQAdminExt admin = new DefaultMQAdminExt();
    private final DefaultMQProducer producer = new DefaultMQProducer("REFEREE");
    private final DefaultMQPullConsumer consumer = new DefaultMQPullConsumer(MixAll.TOOLS_CONSUMER_GROUP);
    private final BrokerData broker;

    public static void main(String[] args) throws Exception {
        PrintStream answers = new PrintStream(System.out, true, StandardCharsets.UTF_8);
        System.setOut(System.err);  // the client and its libraries may print; answers stay clean
        int code = 0;
        try {
            new Referee(args[0], args[1], answers).answerAll();
        } catch (Throwable broken) {
            broken.printStackTrace();
            code = 1;
        }
        System.exit(code);  // the client's threads would keep the JVM alive
    }

    private Referee(String namesrv, String brokerAddress, PrintStream answers) throws Exception {
        this.answers = answers;
        admin.setNamesrvAddr(namesrv);
        admin.start();
        producer.setNamesrvAddr(namesrv);
        producer.setRetryTimesWhenSendFailed(0);  // a retry would store a message twice
        producer.start();
        consumer.setNamesrvAddr(namesrv);
        consumer.start();
        broker = theOnlyBroker(brokerAddress);
    }

    /**
     * A broker that registers before its own client has found the name server tries again only after
     * 10 s. A change of its permission, even to what it is, makes it register at once.
     */
    private BrokerData theOnlyBroker(String brokerAddress) throws Exception {
        Properties permission = new Properties();
        permission.setProperty("brokerPermission", Integer.toString(PermName.PERM_READ | PermName.PERM_WRITE));
        long deadline = System.currentTimeMillis() + REGISTER_TIMEOUT_MS;
        while (System.currentTimeMillis() < deadline) {
            ClusterInfo cluster = admin.examineBrokerClusterInfo();
            Iterator<BrokerData> brokers = cluster.getBrokerAddrTable().values().iterator();
            if (brokers.hasNext()) {
                return brokers.next();
            }
            admin.updateBrokerConfig(brokerAddress, permission);
            Thread.sleep(POLL_INTERVAL_MS);
        }
        throw new IllegalStateException("no broker is registered at the name server");
    }

    private void answerAll() throws Exception {
        BufferedReader requests = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = requests.readLine(); line != null; line = requests.readLine()) {
            try {
                JSONObject request = JSON.parseObject(line);
                answer(request);
                say(new JSONObject().fluentPut("done", request.getString("do")));
            } catch (Exception refused) {
                refused.printStackTrace();
                say(new JSONObject().fluentPut("error", refused.toString()));
            }
        }
    }

    private void answer(JSONObject request) throws Exception {
        String topic = request.getString("topic");
        switch (request.getString("do")) {
            case "ping": say(new JSONObject().fluentPut("broker", broker.getBrokerName())
                .fluentPut("address", brokerAddress())); break;
            case "create": create(topic, request.getIntValue("queues")); break;
            case "send": send(request.getJSONArray("messages")); break;
            case "sendbatch": sendBatch(request.getJSONArray("messages")); break;
            case "offsets": say(offsets(topic)); break;
            case "dump": dump(topic); break;
            case "key": byIndex(topic, request.getString("key"), false); break;
            case "uniq": byIndex(topic, request.getString("key"), true); break;
            case "id": byId(topic, request.getString("id")); break;
            case "time": byTime(topic, request.getIntValue("queue"), request.getLongValue("ms")); break;
            default: throw new IllegalArgumentException("unknown request " + request);
        }
    }

    private void create(String topic, int queues) throws Exception {
        admin.createAndUpdateTopicConfig(brokerAddress(), new TopicConfig(topic, queues, queues));
    }

    private void send(JSONArray messages) throws Exception {
        for (int i = 0; i < messages.size(); i++) {
            JSONObject wanted = messages.getJSONObject(i);
            MessageQueue queue = queue(wanted.getString("topic"), wanted.getIntValue("queueId"));
            say(sent(producer.send(message(wanted), queue)));
        }
    }

    /** One batch to one queue; the answer's ids are comma-separated, its queueOffset is the first. */
    private void sendBatch(JSONArray messages) throws Exception {
        List<Message> batch = new ArrayList<>();
        for (int i = 0; i < messages.size(); i++) {
            batch.add(message(messages.getJSONObject(i)));
        }
        JSONObject first = messages.getJSONObject(0);
        MessageQueue queue = queue(first.getString("topic"), first.getIntValue("queueId"));
        say(sent(producer.send(batch, queue)));
    }

    private static Message message(JSONObject wanted) {
        Message message = new Message(wanted.getString("topic"), bytes(wanted.getString("bodyBase64")));
        if (wanted.containsKey("tags")) {
            message.setTags(wanted.getString("tags"));
        }
        if (wanted.containsKey("keys")) {
            message.setKeys(wanted.getString("keys"));
        }
        if (wanted.containsKey("flag")) {
            message.setFlag(wanted.getIntValue("flag"));
        }
        if (wanted.containsKey("delayLevel")) {
            message.setDelayTimeLevel(wanted.getIntValue("delayLevel"));
        }
        JSONObject properties = wanted.getJSONObject("properties");
        if (properties != null) {
            properties.forEach((name, value) -> message.putUserProperty(name, (String) value));
        }
        return message;
    }

    private static JSONObject sent(SendResult result) {
        return new JSONObject()
            .fluentPut("status", result.getSendStatus().name())
            .fluentPut("offsetMsgId", result.getOffsetMsgId())
            .fluentPut("msgId", result.getMsgId())
            .fluentPut("queueId", result.getMessageQueue().getQueueId())
            .fluentPut("queueOffset", result.getQueueOffset());
    }

    private JSONObject offsets(String topic) throws Exception {
        Map<String, Long> min = new TreeMap<>();
        Map<String, Long> max = new TreeMap<>();
        for (MessageQueue queue : queues(topic)) {
            min.put(Integer.toString(queue.getQueueId()), consumer.minOffset(queue));
            max.put(Integer.toString(queue.getQueueId()), consumer.maxOffset(queue));
        }
        return new JSONObject().fluentPut("minOffsets", min).fluentPut("maxOffsets", max);
    }

    private void dump(String topic) throws Exception {
        JSONObject bounds = offsets(topic);
        for (MessageQueue queue : queues(topic)) {
            String queueId = Integer.toString(queue.getQueueId());
            long next = bounds.getJSONObject("minOffsets").getLongValue(queueId);
            long end = bounds.getJSONObject("maxOffsets").getLongValue(queueId);
            while (next < end) {
                next = dumpFrom(queue, next);
            }
        }
        say(bounds);
    }

    /** Says the messages of one pull and returns the queue offset to go on from. */
    private long dumpFrom(MessageQueue queue, long offset) throws Exception {
        PullResult pulled = consumer.pull(queue, "*", offset, PULL_BATCH);
        if (pulled.getPullStatus() != PullStatus.FOUND) {
            throw new IllegalStateException(queue + " at " + offset + " answered " + pulled);
        }
        for (MessageExt message : pulled.getMsgFoundList()) {
            say(stored(message));
        }
        if (pulled.getNextBeginOffset() <= offset) {
            throw new IllegalStateException(queue + " at " + offset + " does not move on: " + pulled);
        }
        return pulled.getNextBeginOffset();
    }

    private void byIndex(String topic, String key, boolean unique) throws Exception {
        MQAdminImpl index = producer.getDefaultMQProducerImpl().getMqClientFactory().getMQAdminImpl();
        try {
            QueryResult found = unique
                ? index.queryMessageByUniqKey(topic, key, INDEX_BATCH, 0, ALL_TIME)
                : index.queryMessage(topic, key, INDEX_BATCH, 0, ALL_TIME);
            for (MessageExt message : found.getMessageList()) {
                say(stored(message));
            }
        } catch (MQClientException refused) {
            if (refused.getResponseCode() != ResponseCode.NO_MESSAGE) {
                throw refused;
            }  // no hit: an answer of no lines
        }
    }

    /**
     * An id holds the address of the broker that stored the message and the log position. A store
     * may have been written elsewhere, so the position is asked of the broker that serves it now.
     */
    private void byId(String topic, String id) throws Exception {
        MessageId written = MessageDecoder.decodeMessageId(id);
        String[] hostAndPort = brokerAddress().split(":");
        SocketAddress here = new InetSocketAddress(hostAndPort[0], Integer.parseInt(hostAndPort[1]));
        String asked = MessageDecoder.createMessageId(here, written.getOffset());
        // the producer's own viewMessage would fall back to the index; this one does not
        say(stored(producer.getDefaultMQProducerImpl().viewMessage(topic, asked)));
    }

    private void byTime(String topic, int queueId, long ms) throws Exception {
        say(new JSONObject().fluentPut("queueOffset", consumer.searchOffset(queue(topic, queueId), ms)));
    }

    private static JSONObject stored(MessageExt message) {
        Map<String, String> properties = new TreeMap<>(message.getProperties());
        properties.remove(MessageConst.PROPERTY_MIN_OFFSET);  // these two are put in by the pulling
        properties.remove(MessageConst.PROPERTY_MAX_OFFSET);  // client; they are not in the record
        return new JSONObject()
            .fluentPut("topic", message.getTopic())
            .fluentPut("queueId", message.getQueueId())
            .fluentPut("queueOffset", message.getQueueOffset())
            .fluentPut("position", message.getCommitLogOffset())
            .fluentPut("storeSize", message.getStoreSize())
            .fluentPut("tags", message.getTags())
            .fluentPut("keys", message.getKeys())
            .fluentPut("bodyBase64", base64(message.getBody()))
            .fluentPut("bodyCRC", message.getBodyCRC())
            .fluentPut("flag", message.getFlag())
            .fluentPut("sysFlag", message.getSysFlag())
            .fluentPut("bornTimestamp", message.getBornTimestamp())
            .fluentPut("storeTimestamp", message.getStoreTimestamp())
            .fluentPut("bornHost", address(message.getBornHost()))
            .fluentPut("storeHost", address(message.getStoreHost()))
            .fluentPut("reconsumeTimes", message.getReconsumeTimes())
            .fluentPut("preparedTransactionOffset", message.getPreparedTransactionOffset())
            .fluentPut("msgId", message.getMsgId())
            .fluentPut("offsetMsgId", ((MessageClientExt) message).getOffsetMsgId())
            .fluentPut("properties", properties);
    }

    private static String address(SocketAddress address) {
        InetSocketAddress inet = (InetSocketAddress) address;
        return inet.getAddress().getHostAddress() + ":" + inet.getPort();
    }

    /** Asked of the broker, not the name server: a topic may be known only from topics.json. */
    private List<MessageQueue> queues(String topic) throws Exception {
        int count = admin.examineTopicConfig(brokerAddress(), topic).getReadQueueNums();
        List<MessageQueue> queues = new ArrayList<>();
        for (int queueId = 0; queueId < count; queueId++) {
            queues.add(queue(topic, queueId));
        }
        return queues;
    }

    private MessageQueue queue(String topic, int queueId) {
        return new MessageQueue(topic, broker.getBrokerName(), queueId);
    }

    private String brokerAddress() {
        return broker.getBrokerAddrs().get(MixAll.MASTER_ID);
    }

    /** The client decodes an empty body as none at all. */
    private static String base64(byte[] body) {
        return body == null ? "" : Base64.getEncoder().encodeToString(body);
    }

    private static byte[] bytes(String base64) {
        return base64 == null ? new byte[0] : Base64.getDecoder().decode(base64);
    }

    private void say(JSONObject line) {
        answers.println(line.toJSONString(JSONWriter.Feature.WriteMapNullValue));
    }
}
