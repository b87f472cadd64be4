import com.alibaba.fastjson2.JSONArray;
import com.alibaba.fastjson2.JSONObject;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.MessageSelector;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyContext;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyContext;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.client.utils.MessageUtil;
import org.apache.rocketmq.common.MixAll;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/** Push consumers by name; each keeps what its listener was given. */
final class DriverListeners {
    private static final long POLL_INTERVAL_MS = 5;

    private final String namesrv;
    private final DriverProducers producers;
    private final Map<String, DefaultMQPushConsumer> consumers = new ConcurrentHashMap<>();
    private final Map<String, Listener> listeners = new ConcurrentHashMap<>();

    DriverListeners(String namesrv, DriverProducers producers) {
        this.namesrv = namesrv;
        this.producers = producers;
    }

    void answer(String what, JSONObject request, ClientDriver.Answer answer) throws Exception {
        String name = request.getString("name");
        switch (what) {
            case "open": open(name, request); break;
            case "close": DriverJson.close(request, consumers.remove(name)::shutdown); break;
            case "received": listeners.get(name).await(request).forEach(answer::say); break;
            case "owned": owned(consumers.get(name), answer); break;
            case "client": answer.say(new JSONObject().fluentPut("clientId",
                consumers.get(name).getDefaultMQPushConsumerImpl().getmQClientFactory().getClientId())); break;
            default: throw new IllegalArgumentException("unknown request " + request);
        }
    }

    private void open(String name, JSONObject request) throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(request.getString("group"));
        consumer.setNamesrvAddr(namesrv);
        consumer.setInstanceName(name);
        DriverJson.configure(consumer, request);
        subscribe(consumer, request.getJSONArray("subscribe"));
        Listener listener = new Listener(request, producers);
        if (request.getBooleanValue("orderly")) {
            consumer.registerMessageListener((MessageListenerOrderly) listener::inOrder);
        } else {
            consumer.registerMessageListener((MessageListenerConcurrently) listener::concurrently);
        }
        listeners.put(name, listener);
        consumer.start();
        consumers.put(name, consumer);
    }

    private static void subscribe(DefaultMQPushConsumer consumer, JSONArray wanted) throws Exception {
        for (int i = 0; i < wanted.size(); i++) {
            JSONObject one = wanted.getJSONObject(i);
            if (one.containsKey("sql")) {
                consumer.subscribe(one.getString("topic"), MessageSelector.bySql(one.getString("sql")));
            } else {
                consumer.subscribe(one.getString("topic"), one.getString("tags"));
            }
        }
    }

    /** The queues of the moment, without those of the group's retry topic. */
    private static void owned(DefaultMQPushConsumer consumer, ClientDriver.Answer answer) {
        for (MessageQueue queue : consumer.getDefaultMQPushConsumerImpl().getRebalanceImpl().getProcessQueueTable().keySet()) {
            if (!queue.getTopic().startsWith(MixAll.RETRY_GROUP_TOPIC_PREFIX)) {
                answer.say(DriverJson.queue(queue));
            }
        }
    }

    /**
     * Keeps every message and answers as the request that opened it said: fails each message's first
     * {@code failures} deliveries, takes {@code pauseMs} for each, replies through {@code replyWith}.
     *
     * <p>It must not implement the interfaces of both kinds of listener: the client would take it for an ordered one.
     */
    private static final class Listener {
        private final int failures;
        private final int delayLevel;
        private final long pauseMs;
        private final String replyWith;
        private final DriverProducers producers;
        private final List<JSONObject> received = new ArrayList<>();

        Listener(JSONObject request, DriverProducers producers) {
            this.failures = request.getIntValue("failures", 0);
            this.delayLevel = request.getIntValue("delayLevel", 1);
            this.pauseMs = request.getLongValue("pauseMs", 0L);
            this.replyWith = request.getString("replyWith");
            this.producers = producers;
        }

        List<JSONObject> await(JSONObject request) throws InterruptedException {
            long deadline = System.currentTimeMillis() + request.getLongValue("timeoutMs");
            int wanted = request.getIntValue("count");
            while (true) {
                synchronized (received) {
                    if (received.size() >= wanted || System.currentTimeMillis() > deadline) {
                        return new ArrayList<>(received);
                    }
                }
                Thread.sleep(POLL_INTERVAL_MS);
            }
        }

        ConsumeConcurrentlyStatus concurrently(List<MessageExt> messages, ConsumeConcurrentlyContext context) {
            context.setDelayLevelWhenNextConsume(delayLevel);
            return take(messages) ? ConsumeConcurrentlyStatus.CONSUME_SUCCESS : ConsumeConcurrentlyStatus.RECONSUME_LATER;
        }

        ConsumeOrderlyStatus inOrder(List<MessageExt> messages, ConsumeOrderlyContext context) {
            context.setSuspendCurrentQueueTimeMillis(100);
            return take(messages) ? ConsumeOrderlyStatus.SUCCESS : ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT;
        }

        private boolean take(List<MessageExt> messages) {
            boolean good = true;
            for (MessageExt message : messages) {
                synchronized (received) {
                    received.add(DriverJson.stored(message).fluentPut("arrived", System.currentTimeMillis()));
                }
                good &= message.getReconsumeTimes() >= failures;
                settle(message);
            }
            return good;
        }

        private void settle(MessageExt message) {
            try {
                Thread.sleep(pauseMs);
                if (replyWith != null) {
                    Message reply = MessageUtil.createReplyMessage(message, ("re: " + new String(message.getBody())).getBytes());
                    producers.named(replyWith).send(reply);
                }
            } catch (Exception lost) {
                throw new IllegalStateException(lost);
            }
        }
    }
}
