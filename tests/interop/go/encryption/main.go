// Encrypted messages of the Go client, for test_encryption.py: URL, a directory with keys, the name of one, "produce"
// and the beginning of topics' names, to whose topics three messages are sent; or "consume" and topics, of which
// three messages each are printed.
package main

import (
	"context"
	"fmt"
	"math/rand"
	"os"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
	"github.com/apache/pulsar-client-go/pulsar/crypto"
	"github.com/apache/pulsar-client-go/pulsar/log"
	"github.com/sirupsen/logrus"
)

const count = 3

var codecs = map[string]pulsar.CompressionType{
	"NONE": pulsar.NoCompression, "LZ4": pulsar.LZ4, "ZLIB": pulsar.ZLib, "ZSTD": pulsar.ZSTD, "SNAPPY": pulsar.SNAPPY,
}

func main() {
	url, directory, name, verb, topics := os.Args[1], os.Args[2], os.Args[3], os.Args[4], os.Args[5:]
	keys := crypto.NewFileKeyReader(directory+"/"+name+".pub", directory+"/"+name+".pem")
	logger := logrus.New()
	logger.SetLevel(logrus.ErrorLevel)
	client, err := pulsar.NewClient(pulsar.ClientOptions{URL: url, Logger: log.NewLoggerWithLogrus(logger)})
	check(err)
	defer client.Close()
	for _, topic := range topics {
		if verb == "produce" {
			produce(client, topic, name, keys)
		} else {
			consume(client, topic, keys)
		}
	}
}

func check(err error) {
	if err != nil {
		panic(err)
	}
}

// text does not become much smaller if it is compressed.
func text(number int, size int) []byte {
	text := []byte(fmt.Sprintf("secret %d ", number))
	random := rand.New(rand.NewSource(int64(number)))
	for range size {
		text = append(text, byte('a'+random.Intn(26)))
	}
	return text
}

func produce(client pulsar.Client, base string, name string, keys crypto.KeyReader) {
	for codec, kind := range codecs {
		for _, form := range []string{"single", "batched", "chunked"} {
			options := pulsar.ProducerOptions{
				Topic: base + "-" + form + "-" + codec, CompressionType: kind, DisableBatching: form != "batched",
				Encryption: &pulsar.ProducerEncryptionInfo{KeyReader: keys, Keys: []string{name}},
			}
			size := 30
			if form == "chunked" {
				options.EnableChunking, options.ChunkMaxMessageSize, size = true, 400, 1000
			}
			producer, err := client.CreateProducer(options)
			check(err)
			for number := range count {
				producer.SendAsync(context.Background(), &pulsar.ProducerMessage{Payload: text(number, size)},
					func(_ pulsar.MessageID, _ *pulsar.ProducerMessage, err error) { check(err) })
			}
			check(producer.Flush())
			producer.Close()
		}
	}
}

func consume(client pulsar.Client, topic string, keys crypto.KeyReader) {
	consumer, err := client.Subscribe(pulsar.ConsumerOptions{
		Topic: topic, SubscriptionName: "s", SubscriptionInitialPosition: pulsar.SubscriptionPositionEarliest,
		Decryption: &pulsar.MessageDecryptionInfo{KeyReader: keys},
	})
	check(err)
	defer consumer.Close()
	for range count {
		limit, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		message, err := consumer.Receive(limit)
		cancel()
		check(err)
		fmt.Println(string(message.Payload()))
	}
}
