// The Go client by the contracts of `pwire conform client`: MODE URL TOPIC COUNT TIMEOUT KEEPALIVE.
package main

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
	"github.com/apache/pulsar-client-go/pulsar/log"
	"github.com/sirupsen/logrus"
)

func main() {
	count, _ := strconv.Atoi(os.Args[4])
	timeout, keepAlive := seconds(os.Args[5]), seconds(os.Args[6])
	logger := logrus.New()
	logger.SetLevel(logrus.WarnLevel)
	client, err := pulsar.NewClient(pulsar.ClientOptions{
		URL: os.Args[2], OperationTimeout: timeout, ConnectionTimeout: timeout, KeepAliveInterval: keepAlive,
		Logger: log.NewLoggerWithLogrus(logger),
	})
	check(err)
	if os.Args[1] == "produce" {
		produce(client, os.Args[3], count, timeout)
	} else {
		consume(client, os.Args[3], count)
	}
	client.Close()
}

func produce(client pulsar.Client, topic string, count int, timeout time.Duration) {
	producer, err := client.CreateProducer(pulsar.ProducerOptions{
		Topic: topic, DisableBatching: true, SendTimeout: timeout,
	})
	check(err)
	outcomes := make(chan error, count)
	for number := 0; number < count; number++ {
		message := &pulsar.ProducerMessage{Payload: []byte(strconv.Itoa(number))}
		producer.SendAsync(context.Background(), message,
			func(_ pulsar.MessageID, _ *pulsar.ProducerMessage, err error) { outcomes <- err })
	}
	failed := false
	for number := 0; number < count; number++ {
		err := <-outcomes
		fmt.Println(err)
		failed = failed || err != nil
	}
	if failed {
		os.Exit(1)
	}
	producer.Close()
}

func consume(client pulsar.Client, topic string, count int) {
	consumer, err := client.Subscribe(pulsar.ConsumerOptions{
		Topic: topic, SubscriptionName: "conform", SubscriptionInitialPosition: pulsar.SubscriptionPositionEarliest,
	})
	check(err)
	for number := 0; number < count; number++ {
		message, err := consumer.Receive(context.Background())
		check(err)
		fmt.Println(string(message.Payload()))
		check(consumer.Ack(message))
	}
	consumer.Close()
}

func seconds(text string) time.Duration {
	value, err := strconv.ParseFloat(text, 64)
	check(err)
	return time.Duration(value * float64(time.Second))
}

func check(err error) {
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
}
