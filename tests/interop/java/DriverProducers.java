import com.alibaba.fastjson2.JSONObject;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.RequestCallback;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.selector.SelectMessageQueueByHash;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.client.producer.TransactionSendResult;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageConst;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/** Producers by name: every way to send, transactions, requests that want a reply, and a steady load. */
final class DriverProducers {
    private static final long ASYNC_TIMEOUT_S = 20;

    private final String namesrv;
    private final Map<String, DefaultMQProducer> producers = new ConcurrentHashMap<>();
    private final Map<String, Decider> deciders = new ConcurrentHashMap<>();
    private final Map<String, Flood> floods = new ConcurrentHashMap<>();

    DriverProducers(String namesrv) {
        this.namesrv = namesrv;
    }

    DefaultMQProducer named(String name) {
        DefaultMQProducer found = producers.get(name);
        if (found == null) {
            throw new IllegalArgumentException("no producer is called " + name);
        }
        return found;
    }

    void answer(String what, JSONObject request, ClientDriver.Answer answer) throws Exception {
        String name = request.getString("name");
        switch (what) {
            case "open": open(name, request); break;
            case "close": DriverJson.close(request, producers.remove(name)::shutdown); break;
            case "queues": named(name).fetchPublishMessageQueues(request.getString("topic"))
                .forEach(queue -> answer.say(DriverJson.queue(queue))); break;
            case "send": send(named(name), request, answer); break;
            case "transaction": transaction((TransactionMQProducer) named(name), request, answer); break;
            case "checks": deciders.get(name).checked.forEach(answer::say); break;
            case "request": request(named(name), request, answer); break;
            case "recall": answer.say(new JSONObject().fluentPut("msgId",
                named(name).recallMessage(request.getString("topic"), request.getString("handle")))); break;
            case "flood": floods.put(name, new Flood(named(name), request)); break;
            case "flooded": answer.say(floods.remove(name).end()); break;
            default: throw new IllegalArgumentException("unknown request " + request);
        }
    }

    private void open(String name, JSONObject request) throws Exception {
        String group = request.getString("group");
        DefaultMQProducer producer;
        if (request.getBooleanValue("transactional")) {
            TransactionMQProducer transactional = new TransactionMQProducer(group);
            deciders.put(name, new Decider());
            transactional.setTransactionListener(deciders.get(name));
            producer = transactional;
        } else {
            producer = new DefaultMQProducer(group);
        }
        producer.setNamesrvAddr(namesrv);
        producer.setInstanceName(name);
        DriverJson.configure(producer, request);
        producer.start();
        producers.put(name, producer);
    }

    private static void send(DefaultMQProducer producer, JSONObject request, ClientDriver.Answer answer) throws Exception {
        List<Message> messages = DriverJson.messages(request);
        switch (request.getString("how")) {
            case "sync":
                for (Message message : messages) {
                    answer.say(DriverJson.sent(producer.send(message)));
                }
                break;
            case "oneway":
                for (Message message : messages) {
                    producer.sendOneway(message);
                }
                break;
            case "batch": answer.say(DriverJson.sent(producer.send(messages))); break;
            case "async": async(producer, messages, answer); break;
            case "queue": {
                for (Message message : messages) {
                    MessageQueue queue = new MessageQueue(
                        message.getTopic(), request.getString("broker"), request.getIntValue("queueId"));
                    answer.say(DriverJson.sent(producer.send(message, queue)));
                }
                break;
            }
            case "selected":  // the queue is chosen by the message's first key
                for (Message message : messages) {
                    answer.say(DriverJson.sent(producer.send(message,
                        (queues, one, key) -> queues.get(Math.floorMod(key.hashCode(), queues.size())), message.getKeys())));
                }
                break;
            case "hashed":  // by the client's own rule
                for (Message message : messages) {
                    answer.say(DriverJson.sent(producer.send(message, new SelectMessageQueueByHash(), message.getKeys())));
                }
                break;
            default: throw new IllegalArgumentException("unknown way to send in " + request);
        }
    }

    private static void async(DefaultMQProducer producer, List<Message> messages, ClientDriver.Answer answer)
        throws Exception {
        JSONObject[] results = new JSONObject[messages.size()];
        CountDownLatch left = new CountDownLatch(messages.size());
        for (int i = 0; i < results.length; i++) {
            int place = i;
            producer.send(messages.get(i), new SendCallback() {
                @Override
                public void onSuccess(SendResult result) {
                    results[place] = DriverJson.sent(result);
                    left.countDown();
                }

                @Override
                public void onException(Throwable refused) {
                    results[place] = new JSONObject().fluentPut("refused", DriverJson.told(refused));
                    left.countDown();
                }
            });
        }
        if (!left.await(ASYNC_TIMEOUT_S, TimeUnit.SECONDS)) {
            throw new IllegalStateException(left.getCount() + " callbacks were never called");
        }
        for (JSONObject result : results) {
            answer.say(result);
        }
    }

    private static void transaction(TransactionMQProducer producer, JSONObject request, ClientDriver.Answer answer)
        throws Exception {
        for (Message message : DriverJson.messages(request)) {
            TransactionSendResult result = producer.sendMessageInTransaction(message, null);
            answer.say(DriverJson.sent(result).fluentPut("local", result.getLocalTransactionState().name()));
        }
    }

    private static void request(DefaultMQProducer producer, JSONObject request, ClientDriver.Answer answer)
        throws Exception {
        Message message = DriverJson.message(request.getJSONObject("message"));
        long timeout = request.getLongValue("timeoutMs");
        if (!request.getBooleanValue("async")) {
            answer.say(DriverJson.plain(producer.request(message, timeout)));
            return;
        }
        CountDownLatch left = new CountDownLatch(1);
        JSONObject line = new JSONObject();
        producer.request(message, new RequestCallback() {
            @Override
            public void onSuccess(Message reply) {
                line.putAll(DriverJson.plain(reply));
                left.countDown();
            }

            @Override
            public void onException(Throwable refused) {
                line.put("refused", DriverJson.told(refused));
                left.countDown();
            }
        }, timeout);
        if (!left.await(timeout + 5_000, TimeUnit.MILLISECONDS)) {
            throw new IllegalStateException("the callback was never called");
        }
        answer.say(line);
    }

    /**
     * Decides as the message's own properties say: {@code local} when it was sent, {@code check} when the broker asks
     * back (a list, one word for each time; the last one stays).
     */
    private static final class Decider implements TransactionListener {
        final List<JSONObject> checked = Collections.synchronizedList(new ArrayList<>());

        @Override
        public LocalTransactionState executeLocalTransaction(Message message, Object argument) {
            return decision(message.getUserProperty("local"));
        }

        @Override
        public LocalTransactionState checkLocalTransaction(MessageExt message) {
            long before = checked.stream().filter(line -> line.get("body").equals(new String(message.getBody()))).count();
            checked.add(DriverJson.stored(message).fluentPut("arrived", System.currentTimeMillis())
                .fluentPut("transactionId", message.getTransactionId())
                .fluentPut("times", message.getUserProperty(MessageConst.PROPERTY_TRANSACTION_CHECK_TIMES)));
            String[] decisions = message.getUserProperty("check").split(",");
            return decision(decisions[(int) Math.min(before, decisions.length - 1)]);
        }

        private static LocalTransactionState decision(String word) {
            switch (word) {
                case "commit": return LocalTransactionState.COMMIT_MESSAGE;
                case "rollback": return LocalTransactionState.ROLLBACK_MESSAGE;
                case "unknown": return LocalTransactionState.UNKNOW;
                default: throw new IllegalArgumentException(word);
            }
        }
    }

    /** Sends numbered messages one after the other until told to end; knows which were acknowledged. */
    private static final class Flood extends Thread {
        private final DefaultMQProducer producer;
        private final String topic;
        private final long pauseMs;
        private final List<String> acknowledged = new ArrayList<>();
        private int refused;
        private String lastRefusal;
        private volatile boolean ended;

        Flood(DefaultMQProducer producer, JSONObject request) {
            this.producer = producer;
            this.topic = request.getString("topic");
            this.pauseMs = request.getLongValue("pauseMs");
            setDaemon(true);
            start();
        }

        @Override
        public void run() {
            for (int number = 0; !ended; number++) {
                String body = topic + "-" + number;
                try {
                    SendResult result = producer.send(new Message(topic, body.getBytes()));
                    if (result.getSendStatus() == SendStatus.SEND_OK) {
                        acknowledged.add(body);
                    }
                    Thread.sleep(pauseMs);
                } catch (Exception late) {
                    refused++;
                    lastRefusal = DriverJson.told(late);
                }
            }
        }

        JSONObject end() throws InterruptedException {
            ended = true;
            join();
            return new JSONObject().fluentPut("acknowledged", acknowledged).fluentPut("refused", refused)
                .fluentPut("lastRefusal", lastRefusal);
        }
    }
}
