import com.alibaba.fastjson2.JSONObject;
import java.util.ArrayList;
import java.util.Collection;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.MessageSelector;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/** Consumers that ask for messages themselves: lite pull, and the older pull API. */
final class DriverPulls {
    private static final long POLL_MS = 100;

    private final String namesrv;
    private final Map<String, DefaultLitePullConsumer> lites = new ConcurrentHashMap<>();
    private final Map<String, DefaultMQPullConsumer> pulls = new ConcurrentHashMap<>();

    DriverPulls(String namesrv) {
        this.namesrv = namesrv;
    }

    void answer(String kind, String what, JSONObject request, ClientDriver.Answer answer) throws Exception {
        if (kind.equals("lite")) {
            lite(what, request, answer);
        } else {
            pull(what, request, answer);
        }
    }

    // --- lite pull -----------------------------------------------------------------------------

    private void lite(String what, JSONObject request, ClientDriver.Answer answer) throws Exception {
        String name = request.getString("name");
        DefaultLitePullConsumer consumer = lites.get(name);
        switch (what) {
            case "open": openLite(name, request); break;
            case "close": DriverJson.close(request, lites.remove(name)::shutdown); break;
            case "assign": consumer.assign(queues(consumer, request)); break;
            case "queues": consumer.fetchMessageQueues(request.getString("topic"))
                .forEach(queue -> answer.say(DriverJson.queue(queue))); break;
            case "assignment": consumer.assignment().forEach(queue -> answer.say(DriverJson.queue(queue))); break;
            case "poll": poll(consumer, request).forEach(message -> answer.say(DriverJson.stored(message))); break;
            case "seek": consumer.seek(one(request), request.getLongValue("offset")); break;
            case "seekToBegin": consumer.seekToBegin(one(request)); break;
            case "seekToEnd": consumer.seekToEnd(one(request)); break;
            case "pause": consumer.pause(queues(consumer, request)); break;
            case "resume": consumer.resume(queues(consumer, request)); break;
            case "commit": consumer.commit(); consumer.getOffsetStore().persistAll(consumer.assignment()); break;
            case "committed": answer.say(offset(consumer.committed(one(request)))); break;
            case "time": answer.say(offset(consumer.offsetForTimestamp(one(request), request.getLong("ms")))); break;
            default: throw new IllegalArgumentException("unknown request " + request);
        }
    }

    private void openLite(String name, JSONObject request) throws Exception {
        DefaultLitePullConsumer consumer = new DefaultLitePullConsumer(request.getString("group"));
        consumer.setNamesrvAddr(namesrv);
        consumer.setInstanceName(name);
        DriverJson.configure(consumer, request);
        if (request.containsKey("sql")) {
            consumer.subscribe(request.getString("topic"), MessageSelector.bySql(request.getString("sql")));
        } else if (request.containsKey("tags")) {
            consumer.subscribe(request.getString("topic"), request.getString("tags"));
        }
        consumer.start();
        lites.put(name, consumer);
    }

    /** Those asked for, by their ids; without ids all. */
    private static Collection<MessageQueue> queues(DefaultLitePullConsumer consumer, JSONObject request) throws Exception {
        Collection<MessageQueue> all = consumer.fetchMessageQueues(request.getString("topic"));
        if (!request.containsKey("queueIds")) {
            return all;
        }
        List<MessageQueue> wanted = new ArrayList<>();
        for (MessageQueue queue : all) {
            if (request.getJSONArray("queueIds").contains(queue.getQueueId())) {
                wanted.add(queue);
            }
        }
        return wanted;
    }

    private static List<MessageExt> poll(DefaultLitePullConsumer consumer, JSONObject request) {
        long deadline = System.currentTimeMillis() + request.getLongValue("timeoutMs");
        List<MessageExt> polled = new ArrayList<>();
        while (polled.size() < request.getIntValue("count") && System.currentTimeMillis() < deadline) {
            polled.addAll(consumer.poll(POLL_MS));
        }
        return polled;
    }

    // --- the older pull API --------------------------------------------------------------------

    private void pull(String what, JSONObject request, ClientDriver.Answer answer) throws Exception {
        String name = request.getString("name");
        DefaultMQPullConsumer consumer = pulls.get(name);
        switch (what) {
            case "open": openPull(name, request); break;
            case "close": DriverJson.close(request, pulls.remove(name)::shutdown); break;
            case "queues": consumer.fetchSubscribeMessageQueues(request.getString("topic"))
                .forEach(queue -> answer.say(DriverJson.queue(queue))); break;
            case "pull": pull(consumer, request, answer); break;
            case "commit": commit(consumer, one(request), request.getLongValue("offset")); break;
            case "committed": answer.say(offset(consumer.fetchConsumeOffset(one(request), true))); break;
            case "min": answer.say(offset(consumer.minOffset(one(request)))); break;
            case "max": answer.say(offset(consumer.maxOffset(one(request)))); break;
            case "time": answer.say(offset(consumer.searchOffset(one(request), request.getLongValue("ms")))); break;
            case "earliest": answer.say(offset(consumer.earliestMsgStoreTime(one(request)))); break;
            default: throw new IllegalArgumentException("unknown request " + request);
        }
    }

    private void openPull(String name, JSONObject request) throws Exception {
        DefaultMQPullConsumer consumer = new DefaultMQPullConsumer(request.getString("group"));
        consumer.setNamesrvAddr(namesrv);
        consumer.setInstanceName(name);
        DriverJson.configure(consumer, request);
        consumer.start();
        pulls.put(name, consumer);
    }

    private static void pull(DefaultMQPullConsumer consumer, JSONObject request, ClientDriver.Answer answer)
        throws Exception {
        long began = System.currentTimeMillis();
        PullResult result = request.getBooleanValue("block")
            ? consumer.pullBlockIfNotFound(one(request), request.getString("tags"), request.getLongValue("offset"),
                request.getIntValue("max"))
            : consumer.pull(one(request), request.getString("tags"), request.getLongValue("offset"),
                request.getIntValue("max"));
        JSONObject line = new JSONObject()
            .fluentPut("status", result.getPullStatus().name())
            .fluentPut("next", result.getNextBeginOffset())
            .fluentPut("min", result.getMinOffset())
            .fluentPut("max", result.getMaxOffset())
            .fluentPut("tookMs", System.currentTimeMillis() - began);
        List<JSONObject> found = new ArrayList<>();
        if (result.getMsgFoundList() != null) {
            result.getMsgFoundList().forEach(message -> found.add(DriverJson.stored(message)));
        }
        answer.say(line.fluentPut("messages", found));
    }

    private static void commit(DefaultMQPullConsumer consumer, MessageQueue queue, long offset) throws Exception {
        consumer.updateConsumeOffset(queue, offset);
        consumer.getOffsetStore().persist(queue);
    }

    private static MessageQueue one(JSONObject request) {
        return new MessageQueue(request.getString("topic"), request.getString("broker"), request.getIntValue("queueId"));
    }

    private static JSONObject offset(Long offset) {
        return new JSONObject().fluentPut("offset", offset);
    }
}
