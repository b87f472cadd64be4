package main

import (
	"context"
	"strings"
	"sync"

	"github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
)

var states = map[string]primitive.LocalTransactionState{
	"commit":   primitive.CommitMessageState,
	"rollback": primitive.RollbackMessageState,
	"unknown":  primitive.UnknowState,
}

// transactions decides as the message itself says: its body is a name and one state for each time it is asked,
// as in "order-1 unknown unknown commit": the first for the sender, the others for the broker's checks.
type transactions struct {
	rocketmq.TransactionProducer
	guard sync.Mutex
	asked map[string]int
	ids   map[string]string
}

func startTransactionProducer(name string, options []producer.Option) (any, error) {
	decides := &transactions{asked: map[string]int{}, ids: map[string]string{}}
	started, err := rocketmq.NewTransactionProducer(decides, options...)
	if err != nil {
		return nil, err
	}
	decides.TransactionProducer = started
	if err := started.Start(); err != nil {
		return nil, err
	}
	return nil, keep(name, decides)
}

func (decides *transactions) ExecuteLocalTransaction(message *primitive.Message) primitive.LocalTransactionState {
	return decides.next(string(message.Body), message.TransactionId)
}

func (decides *transactions) CheckLocalTransaction(message *primitive.MessageExt) primitive.LocalTransactionState {
	return decides.next(string(message.Body), message.TransactionId)
}

func (decides *transactions) next(body, id string) primitive.LocalTransactionState {
	decides.guard.Lock()
	defer decides.guard.Unlock()
	script := strings.Fields(body)[1:]
	turn := min(decides.asked[body], len(script)-1)
	decides.asked[body]++
	decides.ids[body] = id
	return states[script[turn]]
}

type transactionFields struct {
	Name    string
	Message outgoing
}

func sendInTransaction(fields transactionFields) (any, error) {
	by, err := find[*transactions](fields.Name)
	if err != nil {
		return nil, err
	}
	result, err := by.SendMessageInTransaction(context.Background(), fields.Message.message())
	if err != nil {
		return nil, err
	}
	return sentOf(result.SendResult), nil
}

// transactionChecks answers how often the broker has asked about each message, and under which id.
func transactionChecks(fields struct{ Name string }) (any, error) {
	by, err := find[*transactions](fields.Name)
	if err != nil {
		return nil, err
	}
	by.guard.Lock()
	defer by.guard.Unlock()
	all := map[string]any{}
	for body, asked := range by.asked {
		all[body] = map[string]any{"checks": asked - 1, "id": by.ids[body]}
	}
	return all, nil
}
