import com.alibaba.fastjson2.JSONObject;
import com.alibaba.fastjson2.JSONArray;
import java.lang.reflect.Method;
import java.nio.charset.StandardCharsets;
import java.security.MessageDigest;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageClientExt;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/** Messages and results of the client as JSON, and requests as messages. */
final class DriverJson {
    /** A longer body is told by its digest. */
    private static final int LONGEST_BODY_TOLD = 4096;

    private DriverJson() {
    }

    static Message message(JSONObject wanted) {
        String body = wanted.getString("body").repeat(wanted.getIntValue("repeat", 1));
        Message message = new Message(wanted.getString("topic"), body.getBytes(StandardCharsets.UTF_8));
        message.setWaitStoreMsgOK(wanted.getBooleanValue("wait", true));
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
        if (wanted.containsKey("delayMs")) {
            message.setDelayTimeMs(wanted.getLongValue("delayMs"));
        }
        JSONObject properties = wanted.getJSONObject("properties");
        if (properties != null) {
            properties.forEach((name, value) -> message.putUserProperty(name, (String) value));
        }
        return message;
    }

    static List<Message> messages(JSONObject request) {
        JSONArray wanted = request.getJSONArray("messages");
        List<Message> messages = new ArrayList<>();
        for (int i = 0; i < wanted.size(); i++) {
            messages.add(message(wanted.getJSONObject(i)));
        }
        return messages;
    }

    static JSONObject sent(SendResult result) {
        JSONObject line = new JSONObject()
            .fluentPut("status", result.getSendStatus().name())
            .fluentPut("msgId", result.getMsgId())
            .fluentPut("offsetMsgId", result.getOffsetMsgId())
            .fluentPut("queueOffset", result.getQueueOffset())
            .fluentPut("transactionId", result.getTransactionId())
            .fluentPut("regionId", result.getRegionId());
        MessageQueue queue = result.getMessageQueue();
        return queue == null ? line : line.fluentPut("queueId", queue.getQueueId())
            .fluentPut("topic", queue.getTopic()).fluentPut("broker", queue.getBrokerName());
    }

    static JSONObject stored(MessageExt message) {
        Map<String, String> properties = new TreeMap<>(message.getProperties());
        JSONObject line = plain(message)
            .fluentPut("queueId", message.getQueueId())
            .fluentPut("queueOffset", message.getQueueOffset())
            .fluentPut("broker", message.getBrokerName())
            .fluentPut("sysFlag", message.getSysFlag())
            .fluentPut("bornTimestamp", message.getBornTimestamp())
            .fluentPut("storeTimestamp", message.getStoreTimestamp())
            .fluentPut("reconsumeTimes", message.getReconsumeTimes())
            .fluentPut("msgId", message.getMsgId())
            .fluentPut("properties", properties);
        if (message instanceof MessageClientExt) {
            line.put("offsetMsgId", ((MessageClientExt) message).getOffsetMsgId());
        }
        return line;
    }

    /** What a message has before it was stored. */
    static JSONObject plain(Message message) {
        byte[] body = message.getBody() == null ? new byte[0] : message.getBody();
        return new JSONObject()
            .fluentPut("topic", message.getTopic())
            .fluentPut("body", body.length > LONGEST_BODY_TOLD ? digest(body) : new String(body, StandardCharsets.UTF_8))
            .fluentPut("bodyLength", body.length)
            .fluentPut("tags", message.getTags())
            .fluentPut("keys", message.getKeys())
            .fluentPut("flag", message.getFlag())
            .fluentPut("properties", message.getProperties());
    }

    private static String digest(byte[] body) {
        try {
            StringBuilder hex = new StringBuilder("sha256:");
            for (byte one : MessageDigest.getInstance("SHA-256").digest(body)) {
                hex.append(String.format("%02x", one));
            }
            return hex.toString();
        } catch (java.security.NoSuchAlgorithmException impossible) {
            throw new IllegalStateException(impossible);
        }
    }

    static JSONObject queue(MessageQueue queue) {
        return new JSONObject().fluentPut("topic", queue.getTopic()).fluentPut("broker", queue.getBrokerName())
            .fluentPut("queueId", queue.getQueueId());
    }

    /** The whole chain of causes: the client wraps what the broker said. */
    static String told(Throwable refused) {
        StringBuilder told = new StringBuilder(refused.toString());
        for (Throwable cause = refused.getCause(); cause != null; cause = cause.getCause()) {
            told.append(" <- ").append(cause);
        }
        return told.toString();
    }

    /** A shutdown takes a second or more; a story waits for it only where the next step depends on it. */
    static void close(JSONObject request, Runnable shutdown) {
        if (request.getBooleanValue("wait")) {
            shutdown.run();
        } else {
            new Thread(shutdown, "closing " + request.getString("name")).start();
        }
    }

    /** Calls a setter for each field of the request's {@code set}, so that any of the client's settings can be asked for. */
    static void configure(Object client, JSONObject request) throws Exception {
        JSONObject settings = request.getJSONObject("set");
        if (settings == null) {
            return;
        }
        for (String name : settings.keySet()) {
            Method setter = setter(client.getClass(), name);
            setter.invoke(client, settings.getObject(name, setter.getParameterTypes()[0]));
        }
    }

    private static Method setter(Class<?> type, String name) {
        String wanted = "set" + Character.toUpperCase(name.charAt(0)) + name.substring(1);
        for (Method method : type.getMethods()) {
            if (method.getName().equals(wanted) && method.getParameterCount() == 1) {
                return method;
            }
        }
        throw new IllegalArgumentException(type.getSimpleName() + " has no setting " + name);
    }
}
