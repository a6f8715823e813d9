import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import org.apache.pulsar.client.api.*;
import org.apache.pulsar.client.impl.DefaultCryptoKeyReader;

/**
 * Encrypted messages of the Java client, for test_encryption.py: URL, a directory with keys, their names with
 * commas, "produce" and the beginning of topics' names, to whose topics three messages are sent; or "consume" and
 * topics, of which three messages each are printed.
 */
public class Encryption {
    static final int COUNT = 3;

    public static void main(String[] args) throws Exception {
        String[] names = args[2].split(",");
        Map<String, String> publicKeys = new HashMap<>();
        Map<String, String> privateKeys = new HashMap<>();
        for (String name : names) {
            publicKeys.put(name, "file://" + args[1] + "/" + name + ".pub");
            privateKeys.put(name, "file://" + args[1] + "/" + name + ".pem");
        }
        CryptoKeyReader keys = DefaultCryptoKeyReader.builder().publicKeys(publicKeys).privateKeys(privateKeys).build();
        try (PulsarClient client = PulsarClient.builder().serviceUrl(args[0]).build()) {
            if (args[3].equals("produce")) {
                produce(client, args[4], names, keys);
            } else {
                for (int i = 4; i < args.length; i++) {
                    consume(client, args[i], keys);
                }
            }
        }
    }

    /** A text that does not become much smaller if it is compressed. */
    static String text(int number, int size) {
        StringBuilder text = new StringBuilder("secret " + number + " ");
        new Random(number).ints(size, 'a', 'z' + 1).forEach(code -> text.append((char) code));
        return text.toString();
    }

    static void produce(PulsarClient client, String base, String[] names, CryptoKeyReader keys) throws Exception {
        for (CompressionType codec : CompressionType.values()) {
            for (String form : List.of("single", "batched", "chunked")) {
                ProducerBuilder<byte[]> builder = client.newProducer().topic(base + "-" + form + "-" + codec)
                    .compressionType(codec).cryptoKeyReader(keys).enableBatching(form.equals("batched"))
                    .batchingMaxPublishDelay(1, TimeUnit.MINUTES);
                for (String name : names) {
                    builder.addEncryptionKey(name);
                }
                if (form.equals("chunked")) {
                    builder.enableChunking(true).chunkMaxMessageSize(400);
                }
                try (Producer<byte[]> producer = builder.create()) {
                    List<CompletableFuture<MessageId>> sent = new ArrayList<>();
                    for (int i = 0; i < COUNT; i++) {
                        String text = text(i, form.equals("chunked") ? 1000 : 30);
                        sent.add(producer.newMessage().key("k" + i).value(text.getBytes()).sendAsync());
                    }
                    producer.flush();
                    for (CompletableFuture<MessageId> each : sent) {
                        each.get();
                    }
                }
            }
        }
    }

    static void consume(PulsarClient client, String topic, CryptoKeyReader keys) throws Exception {
        try (Consumer<byte[]> consumer = client.newConsumer().topic(topic).subscriptionName("s").cryptoKeyReader(keys)
                .subscriptionInitialPosition(SubscriptionInitialPosition.Earliest).subscribe()) {
            for (int i = 0; i < COUNT; i++) {
                Message<byte[]> message = consumer.receive(20, TimeUnit.SECONDS);
                System.out.println(message == null ? "no message" : new String(message.getValue()));
            }
        }
    }
}
