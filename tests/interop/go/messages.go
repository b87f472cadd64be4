package main

import (
	"time"

	"github.com/apache/rocketmq-client-go/v2/primitive"
)

// outgoing is a message as the caller describes it.
type outgoing struct {
	Topic, Body, Tags, ShardingKey string
	Keys                           []string
	Properties                     map[string]string
	DelayLevel                     int
	// Queue counts only with the "manual" selector.
	Queue  int
	Broker string
}

func (out outgoing) message() *primitive.Message {
	message := primitive.NewMessage(out.Topic, []byte(out.Body))
	message.WithProperties(out.Properties)
	if out.Tags != "" {
		message.WithTag(out.Tags)
	}
	if len(out.Keys) > 0 {
		message.WithKeys(out.Keys)
	}
	if out.ShardingKey != "" {
		message.WithShardingKey(out.ShardingKey)
	}
	if out.DelayLevel > 0 {
		message.WithDelayTimeLevel(out.DelayLevel)
	}
	message.Queue = &primitive.MessageQueue{Topic: out.Topic, BrokerName: out.Broker, QueueId: out.Queue}
	return message
}

// incoming is a message as the client delivered it.
type incoming struct {
	Topic          string            `json:"topic"`
	Body           string            `json:"body"`
	Tags           string            `json:"tags"`
	Keys           string            `json:"keys"`
	Properties     map[string]string `json:"properties"`
	Queue          int               `json:"queue"`
	Offset         int64             `json:"offset"`
	ID             string            `json:"id"`
	OffsetID       string            `json:"offset_id"`
	SysFlag        int32             `json:"sys_flag"`
	ReconsumeTimes int32             `json:"reconsume_times"`
	BornMs         int64             `json:"born_ms"`
	StoredMs       int64             `json:"stored_ms"`
	HeardMs        int64             `json:"heard_ms"`
}

func incomingOf(message *primitive.MessageExt) incoming {
	return incoming{
		Topic:          message.Topic,
		Body:           string(message.Body),
		Tags:           message.GetTags(),
		Keys:           message.GetKeys(),
		Properties:     message.GetProperties(),
		Queue:          message.Queue.QueueId,
		Offset:         message.QueueOffset,
		ID:             message.MsgId,
		OffsetID:       message.OffsetMsgId,
		SysFlag:        message.SysFlag,
		ReconsumeTimes: message.ReconsumeTimes,
		BornMs:         message.BornTimestamp,
		StoredMs:       message.StoreTimestamp,
		HeardMs:        time.Now().UnixMilli(),
	}
}

func incomingOfAll(messages []*primitive.MessageExt) []incoming {
	all := make([]incoming, 0, len(messages))
	for _, message := range messages {
		all = append(all, incomingOf(message))
	}
	return all
}

// sent is what a broker answered to a send.
type sent struct {
	Status        primitive.SendStatus `json:"status"`
	ID            string               `json:"id"`
	OffsetID      string               `json:"offset_id"`
	Queue         int                  `json:"queue"`
	Offset        int64                `json:"offset"`
	TransactionID string               `json:"transaction_id"`
	Region        string               `json:"region"`
	TraceOn       bool                 `json:"trace_on"`
}

func sentOf(result *primitive.SendResult) sent {
	return sent{
		Status:        result.Status,
		ID:            result.MsgID,
		OffsetID:      result.OffsetMsgID,
		Queue:         result.MessageQueue.QueueId,
		Offset:        result.QueueOffset,
		TransactionID: result.TransactionID,
		Region:        result.RegionID,
		TraceOn:       result.TraceOn,
	}
}

func milliseconds(count int) time.Duration {
	return time.Duration(count) * time.Millisecond
}
