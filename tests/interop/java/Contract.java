import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import org.apache.pulsar.client.api.*;

/** The Java client by the contracts of `pwire conform client`: MODE URL TOPIC COUNT TIMEOUT KEEPALIVE. */
public class Contract {
    public static void main(String[] args) throws Exception {
        int count = Integer.parseInt(args[3]);
        int timeout = (int) (Double.parseDouble(args[4]) * 1000);
        ClientBuilder builder = PulsarClient.builder().serviceUrl(args[1])
            .operationTimeout(timeout, TimeUnit.MILLISECONDS).lookupTimeout(timeout, TimeUnit.MILLISECONDS)
            .connectionTimeout(timeout, TimeUnit.MILLISECONDS)
            .keepAliveInterval((int) Double.parseDouble(args[5]), TimeUnit.SECONDS);
        boolean succeeded;
        try {
            PulsarClient client = builder.build();
            succeeded = args[0].equals("produce") ? produce(client, args[2], count, timeout) : consume(client, args[2], count);
            client.close();
        } catch (PulsarClientException error) {
            System.out.println(error);
            succeeded = false;
        }
        System.exit(succeeded ? 0 : 1); // threads of a client that was not closed go on
    }

    static boolean produce(PulsarClient client, String topic, int count, int timeout) throws PulsarClientException {
        Producer<byte[]> producer = client.newProducer().topic(topic).enableBatching(false)
            .sendTimeout(timeout, TimeUnit.MILLISECONDS).create();
        List<CompletableFuture<MessageId>> sent = new ArrayList<>();
        for (int number = 0; number < count; number++) {
            sent.add(producer.sendAsync(Integer.toString(number).getBytes()));
        }
        boolean succeeded = true;
        for (CompletableFuture<MessageId> future : sent) {
            try {
                System.out.println(future.join());
            } catch (RuntimeException error) {
                System.out.println(error.getCause());
                succeeded = false;
            }
        }
        return succeeded;
    }

    static boolean consume(PulsarClient client, String topic, int count) throws PulsarClientException {
        Consumer<byte[]> consumer = client.newConsumer().topic(topic).subscriptionName("conform")
            .subscriptionInitialPosition(SubscriptionInitialPosition.Earliest).subscribe();
        for (int number = 0; number < count; number++) {
            Message<byte[]> message = consumer.receive();
            System.out.println(new String(message.getData(), StandardCharsets.UTF_8));
            consumer.acknowledge(message);
        }
        consumer.close();
        return true;
    }
}
