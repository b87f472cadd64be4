package main

import (
	"context"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
)

var startsFrom = map[string]consumer.ConsumeFromWhere{
	"":          consumer.ConsumeFromFirstOffset,
	"first":     consumer.ConsumeFromFirstOffset,
	"last":      consumer.ConsumeFromLastOffset,
	"timestamp": consumer.ConsumeFromTimestamp,
}

type consumerFields struct {
	Name, Group, Topic string
	// Tags or SQL, at most one of them; all messages without both.
	Tags, SQL string
	// From is "first", "last" or "timestamp"; At is the time for the last of them, in UTC, as in 20261231235959.
	From, At string

	Broadcasting, Orderly, Trace bool
	MaxReconsumeTimes            int32
	PullBatch                    int32
	// FailBelow refuses a message until it comes for the so manieth time again; after RetryLevel's delay.
	FailBelow  int32
	RetryLevel int
	// SlowMs is what it takes to work on one message.
	SlowMs int
	// ReplyBy names the producer that replies to every message.
	ReplyBy string
	// Diary is a file that gets a line with the body of each message that is taken: it outlives this process.
	Diary string
}

func (fields consumerFields) options() []consumer.Option {
	model := consumer.Clustering
	if fields.Broadcasting {
		model = consumer.BroadCasting
	}
	pullBatch := fields.PullBatch
	if pullBatch == 0 {
		pullBatch = 32
	}
	resolver := primitive.NewPassthroughResolver([]string{nameServer})
	options := []consumer.Option{
		consumer.WithGroupName(fields.Group),
		consumer.WithInstance(fields.Name),
		consumer.WithNsResolver(resolver),
		consumer.WithConsumerModel(model),
		consumer.WithConsumeFromWhere(startsFrom[fields.From]),
		consumer.WithConsumerOrder(fields.Orderly),
		consumer.WithPullBatchSize(pullBatch),
	}
	if fields.At != "" {
		options = append(options, consumer.WithConsumeTimestamp(fields.At))
	}
	if fields.MaxReconsumeTimes > 0 {
		options = append(options, consumer.WithMaxReconsumeTimes(fields.MaxReconsumeTimes))
	}
	if fields.Trace {
		trace := primitive.TraceConfig{NamesrvAddrs: []string{nameServer}, GroupName: fields.Group, Access: primitive.Local}
		options = append(options, consumer.WithTrace(&trace))
	}
	return options
}

func (fields consumerFields) selector() consumer.MessageSelector {
	switch {
	case fields.SQL != "":
		return consumer.MessageSelector{Type: consumer.SQL92, Expression: fields.SQL}
	case fields.Tags != "":
		return consumer.MessageSelector{Type: consumer.TAG, Expression: fields.Tags}
	}
	return consumer.MessageSelector{}
}

// listener is a push consumer and what it has heard so far.
type listener struct {
	rocketmq.PushConsumer
	fields consumerFields
	guard  sync.Mutex
	heard  []incoming
	// refused holds what came and was asked for again.
	refused []incoming
	more    chan struct{}
	diary   *os.File
	// atWork and crowd are how many messages of a queue are worked on now and at most.
	atWork map[int]int
	crowd  int
}

func startPushConsumer(fields consumerFields) (any, error) {
	started, err := rocketmq.NewPushConsumer(fields.options()...)
	if err != nil {
		return nil, err
	}
	listens := &listener{PushConsumer: started, fields: fields, more: make(chan struct{}, 1), atWork: map[int]int{}}
	if fields.Diary != "" {
		if listens.diary, err = os.Create(fields.Diary); err != nil {
			return nil, err
		}
	}
	if err := started.Subscribe(fields.Topic, fields.selector(), listens.take); err != nil {
		return nil, err
	}
	if err := started.Start(); err != nil {
		return nil, err
	}
	return nil, keep(fields.Name, listens)
}

func (listens *listener) take(ctx context.Context, messages ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
	listens.busy(messages[0].Queue.QueueId, 1)
	defer listens.busy(messages[0].Queue.QueueId, -1)
	time.Sleep(milliseconds(listens.fields.SlowMs * len(messages)))
	for _, message := range messages {
		if message.ReconsumeTimes < listens.fields.FailBelow {
			return listens.refuse(ctx, message)
		}
		if listens.fields.ReplyBy != "" {
			if err := listens.reply(message); err != nil {
				return consumer.ConsumeRetryLater, err
			}
		}
		if listens.diary != nil {
			fmt.Fprintf(listens.diary, "%s\n", message.Body)
		}
		listens.note(&listens.heard, message)
	}
	return consumer.ConsumeSuccess, nil
}

func (listens *listener) busy(queue, change int) {
	listens.guard.Lock()
	defer listens.guard.Unlock()
	listens.atWork[queue] += change
	listens.crowd = max(listens.crowd, listens.atWork[queue])
}

func (listens *listener) refuse(ctx context.Context, message *primitive.MessageExt) (consumer.ConsumeResult, error) {
	listens.note(&listens.refused, message)
	if inOrder, ok := primitive.GetOrderlyCtx(ctx); ok {
		inOrder.SuspendCurrentQueueTimeMillis = 20
		return consumer.SuspendCurrentQueueAMoment, nil
	}
	if concurrent, ok := primitive.GetConcurrentlyCtx(ctx); ok {
		concurrent.DelayLevelWhenNextConsume = listens.fields.RetryLevel
	}
	return consumer.ConsumeRetryLater, nil
}

func (listens *listener) reply(message *primitive.MessageExt) error {
	by, err := find[rocketmq.Producer](listens.fields.ReplyBy)
	if err != nil {
		return err
	}
	reply, err := consumer.CreateReplyMessage(message, nil)
	if err != nil {
		return err
	}
	reply.Body = append([]byte("re: "), message.Body...)
	_, err = by.SendSync(context.Background(), reply)
	return err
}

func (listens *listener) note(list *[]incoming, message *primitive.MessageExt) {
	listens.guard.Lock()
	defer listens.guard.Unlock()
	*list = append(*list, incomingOf(message))
	select {
	case listens.more <- struct{}{}:
	default:
	}
}

type heardFields struct {
	Name      string
	Count     int
	TimeoutMs int
}

// heard waits until so many messages have come, or for the time; the answer holds all that came since the start.
func heard(fields heardFields) (any, error) {
	listens, err := find[*listener](fields.Name)
	if err != nil {
		return nil, err
	}
	late := time.After(milliseconds(fields.TimeoutMs))
	for listens.count() < fields.Count {
		select {
		case <-listens.more:
		case <-late:
			return listens.all(), nil
		}
	}
	return listens.all(), nil
}

func (listens *listener) count() int {
	listens.guard.Lock()
	defer listens.guard.Unlock()
	return len(listens.heard)
}

func (listens *listener) all() any {
	listens.guard.Lock()
	defer listens.guard.Unlock()
	return map[string]any{
		"heard":   append([]incoming{}, listens.heard...),
		"refused": append([]incoming{}, listens.refused...),
		"crowd":   listens.crowd,
	}
}

// --- Consumers that ask ------------------------------------------------------------------------------------------

func startPullConsumer(fields consumerFields) (any, error) {
	started, err := rocketmq.NewPullConsumer(fields.options()...)
	if err != nil {
		return nil, err
	}
	if err := started.Subscribe(fields.Topic, fields.selector()); err != nil {
		return nil, err
	}
	if err := started.Start(); err != nil {
		return nil, err
	}
	return nil, keep(fields.Name, started)
}

type pollFields struct {
	Name      string
	Count     int
	TimeoutMs int
	// Refuse sends the messages back instead of acknowledging them.
	Refuse bool
}

// poll takes what the client has fetched in the background, and acknowledges it, until it has so many messages.
func poll(fields pollFields) (any, error) {
	by, err := find[rocketmq.PullConsumer](fields.Name)
	if err != nil {
		return nil, err
	}
	verdict := consumer.ConsumeSuccess
	if fields.Refuse {
		verdict = consumer.ConsumeRetryLater
	}
	all := []incoming{}
	deadline := time.Now().Add(milliseconds(fields.TimeoutMs))
	for len(all) < fields.Count && time.Now().Before(deadline) {
		found, err := by.Poll(context.Background(), time.Until(deadline))
		if consumer.IsNoNewMsgError(err) {
			continue
		}
		if err != nil {
			return nil, err
		}
		all = append(all, incomingOfAll(found.GetMsgList())...)
		by.ACK(context.Background(), found, verdict)
	}
	return all, nil
}

type queueFields struct {
	Name, Topic, Broker string
	Queue               int
	Offset              int64
	Count               int
}

func (fields queueFields) queue() *primitive.MessageQueue {
	return &primitive.MessageQueue{Topic: fields.Topic, BrokerName: fields.Broker, QueueId: fields.Queue}
}

var pullStatuses = map[primitive.PullStatus]string{
	primitive.PullFound:         "found",
	primitive.PullNoNewMsg:      "no new message",
	primitive.PullNoMsgMatched:  "no message matched",
	primitive.PullOffsetIllegal: "offset illegal",
	primitive.PullBrokerTimeout: "broker timeout",
}

func pulledOf(result *primitive.PullResult) any {
	return map[string]any{
		"status":   pullStatuses[result.Status],
		"next":     result.NextBeginOffset,
		"min":      result.MinOffset,
		"max":      result.MaxOffset,
		"messages": incomingOfAll(result.GetMessageExts()),
	}
}

// pull asks the next of the consumer's queues for messages behind the group's progress there.
func pull(fields queueFields) (any, error) {
	by, err := find[rocketmq.PullConsumer](fields.Name)
	if err != nil {
		return nil, err
	}
	result, err := by.Pull(context.Background(), fields.Count)
	if err != nil {
		return nil, err
	}
	return pulledOf(result), nil
}

func pullFrom(fields queueFields) (any, error) {
	by, err := find[rocketmq.PullConsumer](fields.Name)
	if err != nil {
		return nil, err
	}
	result, err := by.PullFrom(context.Background(), fields.queue(), fields.Offset, fields.Count)
	if err != nil {
		return nil, err
	}
	return pulledOf(result), nil
}

func currentOffset(fields queueFields) (any, error) {
	by, err := find[rocketmq.PullConsumer](fields.Name)
	if err != nil {
		return nil, err
	}
	return by.CurrentOffset(fields.queue())
}

func updateOffset(fields queueFields) (any, error) {
	by, err := find[rocketmq.PullConsumer](fields.Name)
	if err != nil {
		return nil, err
	}
	return nil, by.UpdateOffset(fields.queue(), fields.Offset)
}

func persistOffsets(fields queueFields) (any, error) {
	by, err := find[rocketmq.PullConsumer](fields.Name)
	if err != nil {
		return nil, err
	}
	if err := by.PersistOffset(context.Background(), fields.Topic); err != nil {
		return nil, fmt.Errorf("offsets of %s: %w", fields.Topic, err)
	}
	return nil, nil
}
