import com.fasterxml.jackson.databind.ObjectMapper;
import com.google.protobuf.SourceContext;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import org.apache.pulsar.client.api.*;
import org.apache.pulsar.client.api.schema.GenericRecord;
import org.apache.pulsar.common.schema.KeyValue;
import org.apache.pulsar.common.schema.KeyValueEncodingType;

/**
 * The Java client, for test_clients_java.py. Every line of stdout is a message as JSON.
 *
 * produce URL BASE    produces to topics whose names begin with BASE; then reads what it produced
 * refuse URL A B      refuses a message in A, puts off one in B, until they are dead letters; then reads those
 * consume URL TOPIC…  reads
 */
public class Clients {
    static final ObjectMapper JSON = new ObjectMapper();

    public static class Order {
        public String what;
        public Integer count;

        static Order of(String what, Integer count) {
            Order order = new Order();
            order.what = what;
            order.count = count;
            return order;
        }
    }

    public static void main(String[] args) throws Exception {
        try (PulsarClient client = PulsarClient.builder().serviceUrl(args[1]).build()) {
            if (args[0].equals("produce")) {
                for (CompressionType codec : CompressionType.values()) {
                    for (String form : List.of("batched", "alone", "chunked")) {
                        read(client, messages(client, args[2], codec, form));
                    }
                }
                for (String topic : schemas(client, args[2])) {
                    read(client, topic);
                }
            } else if (args[0].equals("refuse")) {
                deadLetters(client, args[2]);
                retries(client, args[3]);
            } else {
                for (int i = 2; i < args.length; i++) {
                    read(client, args[i]);
                }
            }
        }
    }

    static String messages(PulsarClient client, String base, CompressionType codec, String form) throws Exception {
        String topic = base + "-" + form + "-" + codec;
        ProducerBuilder<byte[]> builder = client.newProducer().topic(topic).compressionType(codec)
            .enableBatching(form.equals("batched")).batchingMaxPublishDelay(1, TimeUnit.MINUTES)
            .enableChunking(form.equals("chunked"));
        if (form.equals("chunked")) {
            builder.chunkMaxMessageSize(300);
        }
        byte[] binary = new byte[1000];
        new Random(1).nextBytes(binary);
        try (Producer<byte[]> producer = builder.create()) {
            List<CompletableFuture<MessageId>> sent = new ArrayList<>();
            sent.add(producer.newMessage().value("grüße".getBytes(StandardCharsets.UTF_8)).key("kéy")
                .orderingKey("oo".getBytes()).property("a", "1").property("b", "ü").eventTime(1500000000000L)
                .sendAsync());
            sent.add(producer.newMessage().value(binary).keyBytes(new byte[] {0, -1, 7}).sendAsync());
            sent.add(producer.newMessage().value(new byte[0]).sendAsync());
            sent.add(producer.newMessage().value(null).key("gone").sendAsync());
            producer.flush();
            for (CompletableFuture<MessageId> each : sent) {
                each.get();
            }
        }
        return topic;
    }

    static <T> String one(PulsarClient client, String topic, Schema<T> schema, T value) throws Exception {
        try (Producer<T> producer = client.newProducer(schema).topic(topic).create()) {
            producer.send(value);
        }
        return topic;
    }

    static List<String> schemas(PulsarClient client, String base) throws Exception {
        Schema<Order> avro = Schema.AVRO(Order.class);
        Order order = Order.of("tea", 2);
        KeyValue<String, Order> pair = new KeyValue<>("k", order);
        List<String> topics = new ArrayList<>();
        topics.add(one(client, base + "-string", Schema.STRING, "grüße"));
        topics.add(one(client, base + "-int64", Schema.INT64, 42L));
        topics.add(one(client, base + "-json", Schema.JSON(Order.class), order));
        topics.add(one(client, base + "-avro", avro, order));
        topics.add(one(client, base + "-protobuf", Schema.PROTOBUF_NATIVE(SourceContext.class),
            SourceContext.newBuilder().setFileName("tea").build()));
        for (KeyValueEncodingType kind : KeyValueEncodingType.values()) {
            Schema<KeyValue<String, Order>> schema = Schema.KeyValue(Schema.STRING, avro, kind);
            topics.add(one(client, base + "-keyvalue-" + kind, schema, pair));
        }
        return topics;
    }

    static void deadLetters(PulsarClient client, String topic) throws Exception {
        DeadLetterPolicy policy = DeadLetterPolicy.builder().maxRedeliverCount(2).build();
        try (Consumer<Order> consumer = client.newConsumer(Schema.AVRO(Order.class)).topic(topic)
                .subscriptionName("s").subscriptionType(SubscriptionType.Shared).deadLetterPolicy(policy)
                .negativeAckRedeliveryDelay(100, TimeUnit.MILLISECONDS).subscribe();
             Consumer<byte[]> dead = client.newConsumer().topic(topic + "-s-DLQ").subscriptionName("d").subscribe()) {
            bad(client, topic);
            for (int i = 0; i < 3; i++) {
                consumer.negativeAcknowledge(consumer.receive(20, TimeUnit.SECONDS));
            }
            dead.receive(20, TimeUnit.SECONDS);
        }
        read(client, topic + "-s-DLQ");
    }

    static void retries(PulsarClient client, String topic) throws Exception {
        DeadLetterPolicy policy = DeadLetterPolicy.builder().maxRedeliverCount(2).build();
        try (Consumer<Order> consumer = client.newConsumer(Schema.AVRO(Order.class)).topic(topic)
                .subscriptionName("s").subscriptionType(SubscriptionType.Shared).deadLetterPolicy(policy)
                .enableRetry(true).subscribe();
             Consumer<byte[]> dead = client.newConsumer().topic(topic + "-s-DLQ").subscriptionName("d").subscribe()) {
            bad(client, topic);
            for (int i = 0; i < 3; i++) {
                consumer.reconsumeLater(consumer.receive(20, TimeUnit.SECONDS), 100, TimeUnit.MILLISECONDS);
            }
            dead.receive(20, TimeUnit.SECONDS);
        }
        read(client, topic + "-s-RETRY");
        read(client, topic + "-s-DLQ");
    }

    static void bad(PulsarClient client, String topic) throws Exception {
        try (Producer<Order> producer = client.newProducer(Schema.AVRO(Order.class)).topic(topic).create()) {
            producer.newMessage().value(Order.of("bad", 1)).key("k").orderingKey("o".getBytes())
                .property("a", "1").eventTime(5).send();
        }
    }

    static void read(PulsarClient client, String topic) throws Exception {
        try (Reader<GenericRecord> reader = client.newReader(Schema.AUTO_CONSUME()).topic(topic)
                .startMessageId(MessageId.earliest).create()) {
            while (reader.hasMessageAvailable()) {
                Message<GenericRecord> message = reader.readNext(20, TimeUnit.SECONDS);
                Map<String, Object> said = new LinkedHashMap<>();
                said.put("topic", topic);
                said.put("data", message.getData());
                said.put("key", message.hasKey() ? message.getKey() : null);
                said.put("binary_key", message.hasBase64EncodedKey());
                said.put("ordering_key", message.hasOrderingKey() ? new String(message.getOrderingKey()) : null);
                said.put("properties", message.getProperties());
                said.put("event_time", message.getEventTime());
                if (message.getSchemaVersion() != null) {
                    said.put("schema", message.getReaderSchema().get().getSchemaInfo().getType().toString());
                    said.put("value", shown(message.getValue()));
                }
                System.out.println(JSON.writeValueAsString(said));
            }
        }
    }

    static String shown(Object value) {
        if (value instanceof GenericRecord) {
            return shown(((GenericRecord) value).getNativeObject());
        }
        if (value instanceof KeyValue) {
            KeyValue<?, ?> pair = (KeyValue<?, ?>) value;
            return shown(pair.getKey()) + " = " + shown(pair.getValue());
        }
        return value instanceof byte[] ? "bytes" : String.valueOf(value).trim();
    }
}
