import java.util.ArrayList;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeSet;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import java.util.regex.Pattern;
import org.apache.pulsar.client.api.*;
import org.apache.pulsar.client.api.transaction.Transaction;

/**
 * Features of the Java client, for test_clients_features.py: URL BASE, the beginning of all topics' names, where
 * BASE-partitions has three partitions. Every line of stdout is the name of a feature, and "ok" or what went wrong.
 */
public class Features {
    static final int COUNT = 20;
    static final int PATIENCE = 20;

    interface Feature {
        void run(PulsarClient client, String topic) throws Exception;
    }

    public static void main(String[] args) throws Exception {
        Map<String, Feature> features = new LinkedHashMap<>();
        for (SubscriptionType type : SubscriptionType.values()) {
            features.put("type-" + type, (client, topic) -> type(client, topic, type));
        }
        features.put("partitions", Features::partitions);
        features.put("pattern", Features::pattern);
        features.put("nack", Features::nack);
        features.put("dead-letters", Features::deadLetters);
        features.put("seek", Features::seek);
        features.put("batch-parts", Features::batchParts);
        for (CompressionType codec : CompressionType.values()) {
            features.put("codec-" + codec, (client, topic) -> codec(client, topic, codec));
        }
        features.put("chunks", Features::chunks);
        features.put("transactions", Features::transactions);
        features.put("delayed", Features::delayed);
        try (PulsarClient client = PulsarClient.builder().serviceUrl(args[0]).enableTransaction(true).build()) {
            for (Map.Entry<String, Feature> each : features.entrySet()) {
                String said = "ok";
                try {
                    each.getValue().run(client, args[1] + "-" + each.getKey());
                } catch (Exception | AssertionError failed) {
                    said = failed.toString().replace('\n', ' ');
                }
                System.out.println(each.getKey() + " " + said);
            }
        }
    }

    static void check(boolean holds, Object what) {
        if (!holds) {
            throw new AssertionError(what);
        }
    }

    static ConsumerBuilder<byte[]> consumer(PulsarClient client, String topic) {
        return client.newConsumer().topic(topic).subscriptionName("s").subscriptionType(SubscriptionType.Shared)
            .subscriptionInitialPosition(SubscriptionInitialPosition.Earliest);
    }

    static List<MessageId> send(ProducerBuilder<byte[]> builder) throws Exception {
        List<CompletableFuture<MessageId>> sent = new ArrayList<>();
        List<MessageId> ids = new ArrayList<>();
        try (Producer<byte[]> producer = builder.create()) {
            for (int i = 0; i < COUNT; i++) {
                sent.add(producer.newMessage().key("k" + i % 5).value(("" + i).getBytes()).sendAsync());
            }
            producer.flush();
            for (CompletableFuture<MessageId> each : sent) {
                ids.add(each.get());
            }
        }
        return ids;
    }

    static ProducerBuilder<byte[]> producer(PulsarClient client, String topic) {
        return client.newProducer().topic(topic).enableBatching(false);
    }

    static String receive(Consumer<byte[]> consumer) throws Exception {
        Message<byte[]> message = consumer.receive(PATIENCE, TimeUnit.SECONDS);
        check(message != null, "no message");
        consumer.acknowledge(message);
        return new String(message.getValue());
    }

    static Set<Integer> receive(Consumer<byte[]> consumer, int count) throws Exception {
        Set<Integer> found = new TreeSet<>();
        for (int i = 0; i < count; i++) {
            found.add(Integer.parseInt(receive(consumer)));
        }
        return found;
    }

    static void nothing(Consumer<byte[]> consumer) throws Exception {
        Message<byte[]> message = consumer.receive(100, TimeUnit.MILLISECONDS);
        check(message == null, "a message too many");
    }

    static void type(PulsarClient client, String topic, SubscriptionType type) throws Exception {
        List<Consumer<byte[]>> consumers = new ArrayList<>();
        ConsumerBuilder<byte[]> builder = consumer(client, topic).subscriptionType(type);
        consumers.add(builder.consumerName("a").subscribe());
        try {
            consumers.add(builder.clone().consumerName("b").subscribe());
            check(type != SubscriptionType.Exclusive, "two consumers");
        } catch (PulsarClientException.ConsumerBusyException busy) {
            check(type == SubscriptionType.Exclusive, busy);
        }
        send(producer(client, topic));
        Set<String> texts = new TreeSet<>();
        Map<String, Set<Integer>> owners = new HashMap<>();
        long end = System.nanoTime() + TimeUnit.SECONDS.toNanos(PATIENCE);
        while (texts.size() < COUNT && System.nanoTime() < end) {
            for (int i = 0; i < consumers.size(); i++) {
                Message<byte[]> message = consumers.get(i).receive(50, TimeUnit.MILLISECONDS);
                if (message != null) {
                    consumers.get(i).acknowledge(message);
                    check(texts.add(new String(message.getValue())), "twice");
                    owners.computeIfAbsent(message.getKey(), key -> new TreeSet<>()).add(i);
                }
            }
        }
        check(texts.size() == COUNT, texts);
        if (type != SubscriptionType.Shared) {
            check(owners.values().stream().allMatch(each -> each.size() == 1), owners);
        }
        for (Consumer<byte[]> each : consumers) {
            each.close();
        }
    }

    static void partitions(PulsarClient client, String topic) throws Exception {
        check(client.getPartitionsForTopic(topic).get().size() == 3, "partitions");
        try (Consumer<byte[]> consumer = consumer(client, topic).subscribe()) {
            send(producer(client, topic));
            check(receive(consumer, COUNT).size() == COUNT, "lost");
        }
    }

    static void pattern(PulsarClient client, String topic) throws Exception {
        send(producer(client, topic + "-a"));
        try (Consumer<byte[]> consumer = client.newConsumer().topicsPattern(Pattern.compile(topic + "-.*"))
                .subscriptionName("s").subscriptionInitialPosition(SubscriptionInitialPosition.Earliest)
                .patternAutoDiscoveryPeriod(1, TimeUnit.SECONDS).subscribe()) {
            check(receive(consumer, COUNT).size() == COUNT, "lost");
            send(producer(client, topic + "-b"));  // a new topic
            check(receive(consumer, COUNT).size() == COUNT, "lost");
        }
    }

    static void nack(PulsarClient client, String topic) throws Exception {
        try (Consumer<byte[]> consumer = consumer(client, topic)
                .negativeAckRedeliveryDelay(100, TimeUnit.MILLISECONDS).subscribe()) {
            send(producer(client, topic));
            for (int i = 0; i < COUNT; i++) {
                Message<byte[]> message = consumer.receive(PATIENCE, TimeUnit.SECONDS);
                if (i % 2 == 0) {
                    consumer.negativeAcknowledge(message);
                } else {
                    consumer.acknowledge(message);
                }
            }
            check(receive(consumer, COUNT / 2).size() == COUNT / 2, "lost");
            nothing(consumer);
        }
    }

    static void deadLetters(PulsarClient client, String topic) throws Exception {
        DeadLetterPolicy policy = DeadLetterPolicy.builder().maxRedeliverCount(1).build();
        try (Consumer<byte[]> consumer = consumer(client, topic).deadLetterPolicy(policy)
                 .negativeAckRedeliveryDelay(100, TimeUnit.MILLISECONDS).subscribe();
             Consumer<byte[]> dead = consumer(client, topic + "-s-DLQ").subscribe()) {
            send(producer(client, topic));
            for (int i = 0; i < 2 * COUNT; i++) {
                Message<byte[]> message = consumer.receive(PATIENCE, TimeUnit.SECONDS);
                check(message != null, "no message");
                consumer.negativeAcknowledge(message);
            }
            check(receive(dead, COUNT).size() == COUNT, "lost");
        }
    }

    static void seek(PulsarClient client, String topic) throws Exception {
        try (Consumer<byte[]> consumer = consumer(client, topic).subscriptionType(SubscriptionType.Exclusive)
                .subscribe()) {
            List<MessageId> ids = send(producer(client, topic));
            check(receive(consumer, COUNT).size() == COUNT, "lost");
            consumer.seek(ids.get(4));
            check(receive(consumer).equals("5"), "by id");
            consumer.seek(1L);
            check(receive(consumer).equals("0"), "by time");
            consumer.seek(MessageId.latest);
            nothing(consumer);
        }
    }

    static void batchParts(PulsarClient client, String topic) throws Exception {
        ConsumerBuilder<byte[]> builder = consumer(client, topic).enableBatchIndexAcknowledgment(true);
        try (Consumer<byte[]> consumer = builder.subscribe()) {
            send(producer(client, topic).enableBatching(true).batchingMaxPublishDelay(1, TimeUnit.MINUTES));
            for (int i = 0; i < COUNT; i++) {
                Message<byte[]> message = consumer.receive(PATIENCE, TimeUnit.SECONDS);
                if (i % 2 == 0) {
                    consumer.acknowledge(message);
                }
            }
        }
        try (Consumer<byte[]> consumer = builder.subscribe()) {
            Set<Integer> rest = receive(consumer, COUNT / 2);
            check(rest.stream().allMatch(each -> each % 2 == 1), rest);
            nothing(consumer);
        }
    }

    static void codec(PulsarClient client, String topic, CompressionType codec) throws Exception {
        try (Consumer<byte[]> consumer = consumer(client, topic).subscribe()) {
            send(producer(client, topic).enableBatching(true).compressionType(codec));
            send(producer(client, topic).compressionType(codec));
            check(receive(consumer, 2 * COUNT).size() == COUNT, "lost");
        }
    }

    static void chunks(PulsarClient client, String topic) throws Exception {
        String text = "0123456789".repeat(1_200_000);
        try (Consumer<byte[]> consumer = consumer(client, topic).subscribe();
             Producer<byte[]> producer = producer(client, topic).enableChunking(true).create()) {
            producer.send(text.getBytes());
            check(receive(consumer).equals(text), "another text");
        }
    }

    static void transactions(PulsarClient client, String topic) throws Exception {
        try (Consumer<byte[]> consumer = consumer(client, topic).subscribe();
             Consumer<byte[]> results = consumer(client, topic + "-results").subscribe();
             Producer<byte[]> producer = producer(client, topic + "-results").sendTimeout(0, TimeUnit.SECONDS)
                 .create()) {
            send(producer(client, topic));
            for (boolean commit : List.of(false, true)) {
                Transaction open = client.newTransaction().withTransactionTimeout(1, TimeUnit.MINUTES).build().get();
                for (int i = 0; i < COUNT; i++) {
                    Message<byte[]> message = consumer.receive(PATIENCE, TimeUnit.SECONDS);
                    check(message != null, "no message");
                    consumer.acknowledgeAsync(message.getMessageId(), open).get();
                    producer.newMessage(open).value(message.getValue()).sendAsync().get();
                }
                nothing(results);
                if (commit) {
                    open.commit().get();
                } else {
                    open.abort().get();
                }
            }
            check(receive(results, COUNT).size() == COUNT, "lost");
            nothing(results);
            nothing(consumer);
        }
    }

    static void delayed(PulsarClient client, String topic) throws Exception {
        try (Consumer<byte[]> consumer = consumer(client, topic).subscribe();
             Producer<byte[]> producer = producer(client, topic).create()) {
            producer.newMessage().value("later".getBytes()).deliverAfter(2500, TimeUnit.MILLISECONDS).send();
            producer.send("now".getBytes());
            check(receive(consumer).equals("now"), "order");
            check(receive(consumer).equals("later"), "order");
        }
    }
}
