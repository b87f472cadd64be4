package main

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
)

var selectors = map[string]func() producer.QueueSelector{
	"":       producer.NewRoundRobinQueueSelector,
	"hash":   producer.NewHashQueueSelector,
	"manual": producer.NewManualQueueSelector,
	"random": producer.NewRandomQueueSelector,
}

type producerFields struct {
	Name, Group, Selector string
	Retries               int
	Trace                 bool
	// Transactional producers answer by the body of a message: see transactions.
	Transactional bool
}

func startProducer(fields producerFields) (any, error) {
	options := []producer.Option{
		producer.WithGroupName(fields.Group),
		producer.WithInstanceName(fields.Name),
		producer.WithNsResolver(primitive.NewPassthroughResolver([]string{nameServer})),
		producer.WithRetry(fields.Retries),
		producer.WithQueueSelector(selectors[fields.Selector]()),
	}
	if fields.Trace {
		trace := primitive.TraceConfig{NamesrvAddrs: []string{nameServer}, GroupName: fields.Group, Access: primitive.Local}
		options = append(options, producer.WithTrace(&trace))
	}
	if fields.Transactional {
		return startTransactionProducer(fields.Name, options)
	}
	started, err := rocketmq.NewProducer(options...)
	if err != nil {
		return nil, err
	}
	if err := started.Start(); err != nil {
		return nil, err
	}
	return nil, keep(fields.Name, started)
}

type sendFields struct {
	Name, How string
	Messages  []outgoing
}

// send answers with one result for each message; none for "oneway", one in all for "batch".
func send(fields sendFields) (any, error) {
	by, err := find[rocketmq.Producer](fields.Name)
	if err != nil {
		return nil, err
	}
	messages := make([]*primitive.Message, 0, len(fields.Messages))
	for _, described := range fields.Messages {
		messages = append(messages, described.message())
	}
	switch fields.How {
	case "sync":
		return sendEach(by, messages)
	case "async":
		return sendAsync(by, messages)
	case "batch":
		result, err := by.SendSync(context.Background(), messages...)
		if err != nil {
			return nil, err
		}
		return []sent{sentOf(result)}, nil
	case "oneway":
		for _, message := range messages {
			if err := by.SendOneWay(context.Background(), message); err != nil {
				return nil, err
			}
		}
		return nil, nil
	}
	return nil, fmt.Errorf("no such way to send: %s", fields.How)
}

func sendEach(by rocketmq.Producer, messages []*primitive.Message) (any, error) {
	results := make([]sent, 0, len(messages))
	for _, message := range messages {
		result, err := by.SendSync(context.Background(), message)
		if err != nil {
			return nil, err
		}
		results = append(results, sentOf(result))
	}
	return results, nil
}

func sendAsync(by rocketmq.Producer, messages []*primitive.Message) (any, error) {
	results := make([]sent, len(messages))
	failures := make(chan error, len(messages))
	var answered sync.WaitGroup
	for index, message := range messages {
		answered.Add(1)
		callback := func(_ context.Context, result *primitive.SendResult, err error) {
			defer answered.Done()
			if err != nil {
				failures <- err
				return
			}
			results[index] = sentOf(result)
		}
		if err := by.SendAsync(context.Background(), callback, message); err != nil {
			return nil, err
		}
	}
	answered.Wait()
	select {
	case err := <-failures:
		return nil, err
	default:
		return results, nil
	}
}

type requestFields struct {
	Name      string
	Message   outgoing
	TimeoutMs int
	Async     bool
}

// request sends a message and answers with the reply to it.
func request(fields requestFields) (any, error) {
	by, err := find[rocketmq.Producer](fields.Name)
	if err != nil {
		return nil, err
	}
	timeout := milliseconds(fields.TimeoutMs)
	if !fields.Async {
		reply, err := by.Request(context.Background(), timeout, fields.Message.message())
		if err != nil {
			return nil, err
		}
		return replyOf(reply), nil
	}
	replies, failures := make(chan *primitive.Message, 1), make(chan error, 1)
	callback := func(_ context.Context, reply *primitive.Message, err error) {
		if err != nil {
			failures <- err
			return
		}
		replies <- reply
	}
	if err := by.RequestAsync(context.Background(), timeout, callback, fields.Message.message()); err != nil {
		return nil, err
	}
	select {
	case reply := <-replies:
		return replyOf(reply), nil
	case err := <-failures:
		return nil, err
	case <-time.After(2 * timeout):
		return nil, fmt.Errorf("neither a reply nor an error after %s", 2*timeout)
	}
}

func replyOf(reply *primitive.Message) any {
	return map[string]any{"topic": reply.Topic, "body": string(reply.Body), "properties": reply.GetProperties()}
}

// load sends numbers, one after the other, and remembers which were acknowledged.
type load struct {
	guard        sync.Mutex
	acknowledged []string
	// end asks the sender to stop, ended says that it has.
	end, ended chan struct{}
}

var loads = map[string]*load{}

func startLoad(fields struct{ Name, Topic string }) (any, error) {
	by, err := find[rocketmq.Producer](fields.Name)
	if err != nil {
		return nil, err
	}
	under := &load{end: make(chan struct{}), ended: make(chan struct{})}
	loads[fields.Name] = under
	go under.run(by, fields.Topic)
	return nil, nil
}

func (under *load) run(by rocketmq.Producer, topic string) {
	defer close(under.ended)
	for number := 0; ; number++ {
		select {
		case <-under.end:
			return
		default:
		}
		body := strconv.Itoa(number)
		result, err := by.SendSync(context.Background(), primitive.NewMessage(topic, []byte(body)))
		if err == nil && result.Status == primitive.SendOK {
			under.note(body)
			time.Sleep(time.Millisecond)
			continue
		}
		time.Sleep(20 * time.Millisecond)
	}
}

func (under *load) note(body string) {
	under.guard.Lock()
	defer under.guard.Unlock()
	under.acknowledged = append(under.acknowledged, body)
}

// acknowledged are the numbers for which a broker has answered so far.
func acknowledged(fields struct{ Name string }) (any, error) {
	under, known := loads[fields.Name]
	if !known {
		return nil, fmt.Errorf("%s sends no load", fields.Name)
	}
	under.guard.Lock()
	defer under.guard.Unlock()
	return append([]string{}, under.acknowledged...), nil
}

func stopLoad(fields struct{ Name string }) (any, error) {
	under, known := loads[fields.Name]
	if !known {
		return nil, fmt.Errorf("%s sends no load", fields.Name)
	}
	delete(loads, fields.Name)
	close(under.end)
	<-under.ended
	return under.acknowledged, nil
}
