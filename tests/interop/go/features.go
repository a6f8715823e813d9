// Features of the Go client, for test_clients_features.py: BASE, the beginning of all topics' names, where
// BASE-partitions has three partitions, and the broker as JSON. If that has tokens, these are the features of
// TLS and authentication. Every line of stdout is the name of a feature, and "ok" or what went wrong.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
	"github.com/apache/pulsar-client-go/pulsar/log"
)

const (
	count    = 20
	patience = 20 * time.Second
)

type broker struct {
	URL    string            `json:"url"`
	URLTLS string            `json:"url_tls"`
	TLS    map[string]string `json:"tls"`
	Tokens map[string]string `json:"tokens"`
}

type feature struct {
	name string
	run  func(client pulsar.Client, topic string)
}

func main() {
	base := os.Args[1]
	var at broker
	noError(json.Unmarshal([]byte(os.Args[2]), &at))
	client := connect(pulsar.ClientOptions{URL: at.URL, EnableTransaction: len(at.Tokens) == 0})
	defer client.Close()
	features := ordinary()
	if len(at.Tokens) > 0 {
		features = secure(at)
	}
	for _, each := range features {
		fmt.Println(each.name, try(func() { each.run(client, base+"-"+each.name) }))
	}
}

func ordinary() []feature {
	features := []feature{
		{"failover", failover}, {"partitions", partitions}, {"pattern", pattern}, {"nack", nack},
		{"dead-letters", deadLetters}, {"seek", seek}, {"seek-ends", seekEnds}, {"cumulative", cumulative},
		{"batch-parts", batchParts}, {"chunks", chunks}, {"exclusive-producers", exclusiveProducers}, {"readers", readers},
		{"table-views", tableViews}, {"transactions", transactions}, {"aborted-messages", abortedMessages},
		{"delayed", delayed},
	}
	for name, kind := range map[string]pulsar.SubscriptionType{
		"Exclusive": pulsar.Exclusive, "Shared": pulsar.Shared,
		"Failover": pulsar.Failover, "Key_Shared": pulsar.KeyShared,
	} {
		features = append(features, feature{"type-" + name, func(client pulsar.Client, topic string) {
			subscriptionType(client, topic, kind)
		}})
	}
	for name, kind := range map[string]pulsar.CompressionType{
		"NONE": pulsar.NoCompression, "LZ4": pulsar.LZ4, "ZLIB": pulsar.ZLib, "ZSTD": pulsar.ZSTD, "SNAPPY": pulsar.SNAPPY,
	} {
		features = append(features, feature{"codec-" + name, func(client pulsar.Client, topic string) {
			codec(client, topic, kind)
		}})
	}
	definition := `{"type": "record", "name": "order",
		"fields": [{"name": "what", "type": "string"}, {"name": "count", "type": "int"}]}`
	for name, kind := range map[string]pulsar.Schema{
		"json": pulsar.NewJSONSchema(definition, nil), "avro": pulsar.NewAvroSchema(definition, nil),
	} {
		features = append(features, feature{"schema-" + name, func(client pulsar.Client, topic string) {
			recordSchema(client, topic, kind)
		}})
	}
	return append(features, feature{"schema-string", stringSchema})
}

func secure(at broker) []feature {
	trusting := func(authentication pulsar.Authentication) pulsar.ClientOptions {
		return pulsar.ClientOptions{URL: at.URLTLS, TLSTrustCertsFilePath: at.TLS["ca"], TLSValidateHostname: true,
			Authentication: authentication}
	}
	token := func(name string) pulsar.Authentication { return pulsar.NewAuthenticationToken(at.Tokens[name]) }
	certificate := pulsar.NewAuthenticationTLS(at.TLS["client_cert"], at.TLS["client_key"])
	plain := func(name string) pulsar.ClientOptions {
		return pulsar.ClientOptions{URL: at.URL, Authentication: token(name)}
	}
	accepted := func(options pulsar.ClientOptions) func(pulsar.Client, string) {
		return func(_ pulsar.Client, topic string) { mayUse(options, topic) }
	}
	refused := func(options pulsar.ClientOptions) func(pulsar.Client, string) {
		return func(_ pulsar.Client, topic string) { mayNotUse(options, topic) }
	}
	return []feature{
		{"token", accepted(plain("client"))}, {"tls-token", accepted(trusting(token("client")))},
		{"tls-certificate", accepted(trusting(certificate))},
		{"stranger", refused(plain("stranger"))}, {"tls-stranger", refused(trusting(token("stranger")))},
		{"forged", refused(plain("forged"))}, {"tls-forged", refused(trusting(token("forged")))},
		{"nobody", refused(pulsar.ClientOptions{URL: at.URL})}, {"tls-untrusted", refused(pulsar.ClientOptions{
			URL: at.URLTLS, Authentication: token("client")})},
	}
}

// -- what features have in common

// try tells "ok", or how a feature failed.
func try(run func()) (said string) {
	defer func() {
		if failed := recover(); failed != nil {
			said = strings.ReplaceAll(fmt.Sprint(failed), "\n", " ")
		}
	}()
	run()
	return "ok"
}

func noError(err error) {
	if err != nil {
		panic(err)
	}
}

func must[T any](value T, err error) T {
	noError(err)
	return value
}

func check(holds bool, what ...any) {
	if !holds {
		panic(fmt.Sprint(what...))
	}
}

func connect(options pulsar.ClientOptions) pulsar.Client {
	options.Logger = log.DefaultNopLogger()
	return must(pulsar.NewClient(options))
}

func within(limit time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	context.AfterFunc(ctx, cancel)
	return ctx
}

// subscribe makes a consumer of subscription "s", Shared unless told, from the beginning.
func subscribe(client pulsar.Client, topic string, change func(*pulsar.ConsumerOptions)) pulsar.Consumer {
	options := pulsar.ConsumerOptions{
		Topic: topic, SubscriptionName: "s", Type: pulsar.Shared, AckWithResponse: true,
		SubscriptionInitialPosition: pulsar.SubscriptionPositionEarliest, NackRedeliveryDelay: 100 * time.Millisecond,
	}
	if change != nil {
		change(&options)
	}
	return must(client.Subscribe(options))
}

// of makes a change of `subscribe`.
func of(kind pulsar.SubscriptionType, name string) func(*pulsar.ConsumerOptions) {
	return func(options *pulsar.ConsumerOptions) { options.Type, options.Name = kind, name }
}

// send sends the numbers, unbatched unless told, with keys; their ids.
func send(client pulsar.Client, topic string, change func(*pulsar.ProducerOptions)) []pulsar.MessageID {
	options := pulsar.ProducerOptions{Topic: topic, DisableBatching: true}
	if change != nil {
		change(&options)
	}
	producer := must(client.CreateProducer(options))
	defer producer.Close()
	ids, failures := make([]pulsar.MessageID, count), make([]error, count)
	for i := range count {
		message := pulsar.ProducerMessage{Payload: []byte(strconv.Itoa(i)), Key: fmt.Sprint("k", i%5)}
		producer.SendAsync(context.Background(), &message, func(id pulsar.MessageID, _ *pulsar.ProducerMessage, err error) {
			ids[i], failures[i] = id, err
		})
	}
	noError(producer.FlushWithCtx(within(patience)))
	noError(errors.Join(failures...))
	return ids
}

func next(consumer pulsar.Consumer) pulsar.Message {
	return must(consumer.Receive(within(patience)))
}

func receive(consumer pulsar.Consumer) string {
	message := next(consumer)
	noError(consumer.Ack(message))
	return string(message.Payload())
}

// numbers receives so many; they must be these.
func numbers(consumer pulsar.Consumer, wanted ...int) {
	found := []int{}
	for range wanted {
		found = append(found, must(strconv.Atoi(receive(consumer))))
	}
	check(slices.Equal(found, wanted), found)
}

// all receives as many messages as are sent; they must be those, in any order.
func all(consumer pulsar.Consumer) {
	found := map[string]bool{}
	for range count {
		found[receive(consumer)] = true
	}
	check(len(found) == count, found)
}

func from(first, end, step int) (numbers []int) {
	for i := first; i < end; i += step {
		numbers = append(numbers, i)
	}
	return
}

func nothing(consumer pulsar.Consumer) {
	message, err := consumer.Receive(within(100 * time.Millisecond))
	if err == nil {
		panic("a message too many: " + string(message.Payload()))
	}
	check(errors.Is(err, context.DeadlineExceeded), err)
}

// refusal is the error that there must be, with this word in it.
func refusal(err error, word string) {
	check(err != nil, "not refused")
	check(strings.Contains(err.Error(), word), err)
}

// -- features

func subscriptionType(client pulsar.Client, topic string, kind pulsar.SubscriptionType) {
	consumers := []pulsar.Consumer{subscribe(client, topic, of(kind, "a"))}
	if kind == pulsar.Exclusive {
		_, err := client.Subscribe(pulsar.ConsumerOptions{Topic: topic, SubscriptionName: "s"})
		refusal(err, "ConsumerBusy")
	} else {
		consumers = append(consumers, subscribe(client, topic, of(kind, "b")))
	}
	send(client, topic, nil)
	texts, owners := map[string]bool{}, map[string]map[int]bool{}
	for end := time.Now().Add(patience); len(texts) < count && time.Now().Before(end); {
		for i, consumer := range consumers {
			message, err := consumer.Receive(within(50 * time.Millisecond))
			if err != nil {
				continue
			}
			noError(consumer.Ack(message))
			check(!texts[string(message.Payload())], "twice")
			texts[string(message.Payload())] = true
			if owners[message.Key()] == nil {
				owners[message.Key()] = map[int]bool{}
			}
			owners[message.Key()][i] = true
		}
	}
	check(len(texts) == count, texts)
	for key, each := range owners {
		check(kind == pulsar.Shared || len(each) == 1, key, each)
	}
	for _, consumer := range consumers {
		nothing(consumer)
		consumer.Close()
	}
}

// The next consumer goes on where the first one stops.
func failover(client pulsar.Client, topic string) {
	active := subscribe(client, topic, of(pulsar.Failover, "a"))
	send(client, topic, nil)
	numbers(active, from(0, 5, 1)...)
	second := subscribe(client, topic, of(pulsar.Failover, "b"))
	active.Close()
	numbers(second, from(5, count, 1)...)
	second.Close()
}

func partitions(client pulsar.Client, topic string) {
	check(len(must(client.TopicPartitions(topic))) == 3, "partitions")
	consumer := subscribe(client, topic, nil)
	defer consumer.Close()
	send(client, topic, nil)
	all(consumer)
}

func pattern(client pulsar.Client, topic string) {
	send(client, topic+"-a", nil)
	consumer := subscribe(client, "", func(options *pulsar.ConsumerOptions) {
		options.TopicsPattern, options.AutoDiscoveryPeriod = topic+"-.*", time.Second
	})
	defer consumer.Close()
	all(consumer)
	send(client, topic+"-b", nil) // a new topic
	all(consumer)
}

func nack(client pulsar.Client, topic string) {
	consumer := subscribe(client, topic, nil)
	defer consumer.Close()
	send(client, topic, nil)
	for i := range count {
		message := next(consumer)
		if i%2 == 0 {
			consumer.Nack(message)
		} else {
			noError(consumer.Ack(message))
		}
	}
	numbers(consumer, from(0, count, 2)...)
	nothing(consumer)
}

func deadLetters(client pulsar.Client, topic string) {
	consumer := subscribe(client, topic, func(options *pulsar.ConsumerOptions) {
		options.DLQ = &pulsar.DLQPolicy{MaxDeliveries: 2, DeadLetterTopic: topic + "-dead"}
	})
	defer consumer.Close()
	dead := subscribe(client, topic+"-dead", nil)
	defer dead.Close()
	send(client, topic, nil)
	for i := range 2 * count {
		message := next(consumer)
		check(int(message.RedeliveryCount()) == i/count, message.RedeliveryCount())
		consumer.Nack(message)
	}
	all(dead)
	nothing(consumer)
}

func seek(client pulsar.Client, topic string) {
	consumer := subscribe(client, topic, of(pulsar.Exclusive, ""))
	defer consumer.Close()
	ids := send(client, topic, nil)
	all(consumer)
	noError(consumer.SeekByTime(time.UnixMilli(1)))
	numbers(consumer, from(0, count, 1)...)
	noError(consumer.Seek(ids[4]))
	numbers(consumer, from(5, count, 1)...)
}

func seekEnds(client pulsar.Client, topic string) {
	consumer := subscribe(client, topic, of(pulsar.Exclusive, ""))
	defer consumer.Close()
	send(client, topic, nil)
	noError(consumer.Seek(pulsar.LatestMessageID()))
	nothing(consumer)
	noError(consumer.Seek(pulsar.EarliestMessageID()))
	numbers(consumer, from(0, count, 1)...)
}

func cumulative(client pulsar.Client, topic string) {
	consumer := subscribe(client, topic, of(pulsar.Exclusive, ""))
	send(client, topic, nil)
	for i := range count {
		if message := next(consumer); i == 9 {
			noError(consumer.AckCumulative(message))
		}
	}
	consumer.Close()
	consumer = subscribe(client, topic, of(pulsar.Exclusive, ""))
	defer consumer.Close()
	numbers(consumer, from(10, count, 1)...)
}

// What was not acknowledged of a batch comes again, and nothing else.
func batchParts(client pulsar.Client, topic string) {
	parts := func(options *pulsar.ConsumerOptions) { options.EnableBatchIndexAcknowledgment = true }
	consumer := subscribe(client, topic, parts)
	ids := send(client, topic, func(options *pulsar.ProducerOptions) {
		options.DisableBatching, options.BatchingMaxPublishDelay = false, time.Minute
	})
	check(ids[0].EntryID() == ids[count-1].EntryID(), "more than one batch")
	for i := range count {
		if message := next(consumer); i%2 == 0 {
			noError(consumer.Ack(message))
		}
	}
	consumer.Close()
	consumer = subscribe(client, topic, parts)
	defer consumer.Close()
	numbers(consumer, from(1, count, 2)...)
	nothing(consumer)
}

func codec(client pulsar.Client, topic string, kind pulsar.CompressionType) {
	consumer := subscribe(client, topic, nil)
	defer consumer.Close()
	for _, alone := range []bool{false, true} {
		send(client, topic, func(options *pulsar.ProducerOptions) {
			options.CompressionType, options.DisableBatching = kind, alone
		})
		all(consumer)
	}
}

func chunks(client pulsar.Client, topic string) {
	text := strings.Repeat("0123456789", 1_200_000)
	consumer := subscribe(client, topic, nil)
	defer consumer.Close()
	producer := must(client.CreateProducer(pulsar.ProducerOptions{
		Topic: topic, DisableBatching: true, EnableChunking: true}))
	defer producer.Close()
	for _, each := range []string{text, "small"} {
		must(producer.Send(within(patience), &pulsar.ProducerMessage{Payload: []byte(each)}))
		check(receive(consumer) == each, "another text")
	}
}

func exclusiveProducers(client pulsar.Client, topic string) {
	create := func(mode pulsar.ProducerAccessMode) (pulsar.Producer, error) {
		return client.CreateProducer(pulsar.ProducerOptions{Topic: topic, ProducerAccessMode: mode})
	}
	first := must(create(pulsar.ProducerAccessModeExclusive))
	_, err := create(pulsar.ProducerAccessModeExclusive)
	refusal(err, "ProducerFenced")
	_, err = create(pulsar.ProducerAccessModeShared)
	refusal(err, "ProducerBusy")
	first.Close()
	must(create(pulsar.ProducerAccessModeWaitForExclusive)).Close()
}

func readers(client pulsar.Client, topic string) {
	ids := send(client, topic, nil)
	reader := must(client.CreateReader(pulsar.ReaderOptions{Topic: topic, StartMessageID: ids[9]}))
	defer reader.Close()
	for i := 10; i < count; i++ {
		check(reader.HasNext(), "has none")
		check(string(must(reader.Next(within(patience))).Payload()) == strconv.Itoa(i), i)
	}
	check(!reader.HasNext(), "has more")
}

func tableViews(client pulsar.Client, topic string) {
	schema := pulsar.NewStringSchema(nil)
	send(client, topic, func(options *pulsar.ProducerOptions) { options.Schema = schema })
	view := must(client.CreateTableView(pulsar.TableViewOptions{
		Topic: topic, Schema: schema, SchemaValueType: reflect.TypeFor[*string]()}))
	defer view.Close()
	check(view.Size() == 5, view.Size())
	check(*view.Get("k4").(*string) == "19", view.Get("k4"))
}

type order struct {
	What  string `json:"what" avro:"what"`
	Count int    `json:"count" avro:"count"`
}

func recordSchema(client pulsar.Client, topic string, schema pulsar.Schema) {
	var found order
	wanted := order{"tea", 2}
	withSchema(client, topic, schema, wanted, &found)
	check(found == wanted, found)
	withOther(client, topic, pulsar.NewStringSchema(nil))
}

func stringSchema(client pulsar.Client, topic string) {
	found := new(string)
	withSchema(client, topic, pulsar.NewStringSchema(nil), "grüße", &found)
	check(*found == "grüße", *found)
	withOther(client, topic, pulsar.NewInt64Schema(nil))
}

func withSchema(client pulsar.Client, topic string, schema pulsar.Schema, value, found any) {
	consumer := subscribe(client, topic, func(options *pulsar.ConsumerOptions) { options.Schema = schema })
	defer consumer.Close()
	producer := must(client.CreateProducer(pulsar.ProducerOptions{Topic: topic, Schema: schema}))
	defer producer.Close()
	must(producer.Send(within(patience), &pulsar.ProducerMessage{Value: value}))
	message := next(consumer)
	check(slices.Equal(message.SchemaVersion(), make([]byte, 8)), message.SchemaVersion())
	noError(message.GetSchemaValue(found))
}

// Another schema that does not fit is refused.
func withOther(client pulsar.Client, topic string, schema pulsar.Schema) {
	_, err := client.CreateProducer(pulsar.ProducerOptions{Topic: topic, Schema: schema})
	refusal(err, "IncompatibleSchema")
}

func transactions(client pulsar.Client, topic string) {
	consumer, results := subscribe(client, topic, nil), subscribe(client, topic+"-results", nil)
	defer consumer.Close()
	defer results.Close()
	producer := must(client.CreateProducer(pulsar.ProducerOptions{Topic: topic + "-results"}))
	defer producer.Close()
	send(client, topic, nil)
	aborted := must(client.NewTransaction(time.Minute))
	for range count {
		noError(consumer.AckWithTxn(next(consumer), aborted))
	}
	noError(aborted.Abort(within(patience)))
	committed := must(client.NewTransaction(time.Minute))
	for range count {
		message := next(consumer)
		noError(consumer.AckWithTxn(message, committed))
		produce(producer, committed, message.Payload())
	}
	nothing(results)
	noError(committed.Commit(within(patience)))
	all(results)
	nothing(results)
	nothing(consumer)
}

func abortedMessages(client pulsar.Client, topic string) {
	consumer := subscribe(client, topic, nil)
	defer consumer.Close()
	producer := must(client.CreateProducer(pulsar.ProducerOptions{Topic: topic}))
	defer producer.Close()
	transaction := must(client.NewTransaction(time.Minute))
	produce(producer, transaction, []byte("a"))
	nothing(consumer)
	noError(transaction.Abort(within(patience)))
	nothing(consumer)
}

func produce(producer pulsar.Producer, transaction pulsar.Transaction, payload []byte) {
	must(producer.Send(within(patience), &pulsar.ProducerMessage{Payload: payload, Transaction: transaction}))
}

func delayed(client pulsar.Client, topic string) {
	consumer := subscribe(client, topic, nil)
	defer consumer.Close()
	producer := must(client.CreateProducer(pulsar.ProducerOptions{Topic: topic, DisableBatching: true}))
	defer producer.Close()
	later := pulsar.ProducerMessage{Payload: []byte("later"), DeliverAfter: 2500 * time.Millisecond}
	for _, message := range []*pulsar.ProducerMessage{&later, {Payload: []byte("now")}} {
		must(producer.Send(within(patience), message))
	}
	check(receive(consumer) == "now", "order")
	check(receive(consumer) == "later", "order")
}

// -- features of TLS and authentication

func mayUse(options pulsar.ClientOptions, topic string) {
	client := connect(options)
	defer client.Close()
	consumer := subscribe(client, topic, nil)
	defer consumer.Close()
	send(client, topic, nil)
	all(consumer)
}

func mayNotUse(options pulsar.ClientOptions, topic string) {
	options.OperationTimeout = time.Second
	client := connect(options)
	defer client.Close()
	_, err := client.CreateProducer(pulsar.ProducerOptions{Topic: topic})
	check(err != nil, "not refused")
	panic(err)
}
