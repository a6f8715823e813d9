import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.ArrayList;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import org.apache.pulsar.client.api.*;

/**
 * Sessions of the Java client, one after the other, for tests of what stands between it and a broker. A line of
 * stdin is a session as JSON, all but `url` and `topic` with defaults; a line of stdout is what came of it.
 *
 * produce    messages to send at once, "0", "1" and so on, or from `first` on; `pause` ms apart, keys from so
 *            many `keys`, each made longer by `size` bytes
 * consumers  of the `type` of subscription, each by a client of its own, `consume` messages in all
 * again      asks then that what came be delivered again, for it has not been acknowledged, and consumes so many
 *
 * {"sent": [null or the name of an exception ...], "received": [[[text, key] ...] for each consumer]}, `received`
 * twice as long with `again`; or {"error": the name of an exception, "text": ...}
 */
public class Sessions {
    static final ObjectMapper JSON = new ObjectMapper();
    static final int PATIENCE = 60;  // seconds for a message that will come

    public static void main(String[] args) throws Exception {
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            Map<String, Object> said = new LinkedHashMap<>();
            try {
                new Sessions(JSON.readTree(line)).run(said);
            } catch (PulsarClientException failed) {
                said.put("error", failed.getClass().getSimpleName());
                said.put("text", failed.getMessage());
            }
            System.out.println(JSON.writeValueAsString(said));
        }
    }

    final JsonNode asked;
    final List<PulsarClient> clients = new ArrayList<>();
    final List<Consumer<byte[]>> consumers = new ArrayList<>();

    Sessions(JsonNode asked) {
        this.asked = asked;
    }

    int number(String name, int otherwise) {
        return asked.path(name).asInt(otherwise);
    }

    PulsarClient client() throws PulsarClientException {
        ClientBuilder builder = PulsarClient.builder().serviceUrl(asked.get("url").asText())
            .operationTimeout(number("operation_timeout", 30_000), TimeUnit.MILLISECONDS)
            .keepAliveInterval(number("keep_alive", 30), TimeUnit.SECONDS);
        if (asked.has("trust")) {
            builder.tlsTrustCertsFilePath(asked.get("trust").asText()).enableTlsHostnameVerification(true);
        }
        if (asked.has("token")) {
            builder.authentication(AuthenticationFactory.token(asked.get("token").asText()));
        }
        clients.add(builder.build());
        return clients.get(clients.size() - 1);
    }

    void run(Map<String, Object> said) throws Exception {
        try {
            for (int i = 0; i < number("consumers", 0); i++) {
                consumers.add(client().newConsumer().topic(asked.get("topic").asText()).subscriptionName("s")
                    .subscriptionType(SubscriptionType.valueOf(asked.path("type").asText("Exclusive")))
                    .subscriptionInitialPosition(SubscriptionInitialPosition.Earliest)
                    .acknowledgmentGroupTime(0, TimeUnit.MILLISECONDS).subscribe());
            }
            if (asked.has("produce")) {
                said.put("sent", produce());
            }
            List<List<List<String>>> received = new ArrayList<>();
            received.addAll(consume(number("consume", 0), !asked.has("again")));
            if (asked.has("again")) {
                consumers.get(0).redeliverUnacknowledgedMessages();
                received.addAll(consume(number("again", 0), true));
            }
            said.put("received", received);
            for (Consumer<byte[]> each : consumers) {
                each.closeAsync().exceptionally(failed -> null).join();
            }
        } finally {
            for (PulsarClient each : clients) {
                each.closeAsync();  // waiting for it would take two seconds
            }
        }
    }

    List<String> produce() throws Exception {
        ProducerBuilder<byte[]> builder = client().newProducer().topic(asked.get("topic").asText())
            .enableBatching(asked.path("batching").asBoolean(false))
            .batcherBuilder(asked.has("keys") ? BatcherBuilder.KEY_BASED : BatcherBuilder.DEFAULT)
            .sendTimeout(number("send_timeout", 30_000), TimeUnit.MILLISECONDS);
        List<CompletableFuture<MessageId>> sent = new ArrayList<>();
        Producer<byte[]> producer = builder.create();
        for (int i = number("first", 0); i < number("first", 0) + number("produce", 0); i++) {
            TypedMessageBuilder<byte[]> message = producer.newMessage()
                .value((i + " ".repeat(number("size", 0))).getBytes());
            if (asked.has("keys")) {
                message.key("key-" + i % number("keys", 1));
            }
            sent.add(message.sendAsync());
            TimeUnit.MILLISECONDS.sleep(number("pause", 0));
        }
        producer.flushAsync().exceptionally(failed -> null).join();
        List<String> outcomes = new ArrayList<>();
        for (CompletableFuture<MessageId> each : sent) {
            try {
                each.get();
                outcomes.add(null);
            } catch (ExecutionException failed) {
                outcomes.add(failed.getCause().getClass().getSimpleName());
            }
        }
        producer.closeAsync().exceptionally(failed -> null).join();
        return outcomes;
    }

    /** What each consumer gets, until it is as much as is wanted in all, each message once or more. */
    List<List<List<String>>> consume(int count, boolean acknowledge) throws Exception {
        List<List<List<String>>> received = new ArrayList<>();
        for (Consumer<byte[]> each : consumers) {
            received.add(new ArrayList<>());
        }
        long deadline = System.nanoTime() + TimeUnit.SECONDS.toNanos(PATIENCE);
        Set<String> different = new HashSet<>();
        while (different.size() < count && System.nanoTime() < deadline) {
            for (int i = 0; i < consumers.size(); i++) {
                Message<byte[]> message = consumers.get(i).receive(20, TimeUnit.MILLISECONDS);
                if (message != null) {
                    String text = new String(message.getData()).strip();
                    different.add(text);
                    List<String> told = new ArrayList<>();
                    told.add(text);
                    told.add(message.getKey());
                    received.get(i).add(told);
                    if (acknowledge) {
                        try {
                            consumers.get(i).acknowledge(message);
                        } catch (PulsarClientException.ConnectException gone) {
                            // it will come again, when the broker is back
                        }
                    }
                }
            }
        }
        return received;
    }
}
