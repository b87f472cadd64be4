package main

import (
	"context"
	"time"

	"github.com/apache/rocketmq-client-go/v2/admin"
	"github.com/apache/rocketmq-client-go/v2/primitive"
)

type adminFields struct {
	Topic, Broker string
	Queues        int
}

// asAdmin runs one request with an admin client of its own: a client remembers routes.
func asAdmin(run func(context.Context, admin.Admin) (any, error)) (any, error) {
	by, err := admin.NewAdmin(admin.WithResolver(primitive.NewPassthroughResolver([]string{nameServer})))
	if err != nil {
		return nil, err
	}
	defer by.Close()
	return run(context.Background(), by)
}

func createTopic(fields adminFields) (any, error) {
	return asAdmin(func(ctx context.Context, by admin.Admin) (any, error) {
		return nil, by.CreateTopic(ctx,
			admin.WithTopicCreate(fields.Topic),
			admin.WithBrokerAddrCreate(fields.Broker),
			admin.WithReadQueueNums(fields.Queues),
			admin.WithWriteQueueNums(fields.Queues),
		)
	})
}

func deleteTopic(fields adminFields) (any, error) {
	return asAdmin(func(ctx context.Context, by admin.Admin) (any, error) {
		return nil, by.DeleteTopic(ctx, admin.WithTopicDelete(fields.Topic), admin.WithBrokerAddrDelete(fields.Broker))
	})
}

func topics(adminFields) (any, error) {
	return asAdmin(func(ctx context.Context, by admin.Admin) (any, error) {
		list, err := by.FetchAllTopicList(ctx)
		if err != nil {
			return nil, err
		}
		return list.TopicList, nil
	})
}

// queues are those that the name server's route of a topic allows to write to.
func queues(fields adminFields) (any, error) {
	return asAdmin(func(ctx context.Context, by admin.Admin) (any, error) {
		found, err := by.FetchPublishMessageQueues(ctx, fields.Topic)
		if err != nil {
			return nil, err
		}
		all := []map[string]any{}
		for _, queue := range found {
			all = append(all, map[string]any{"broker": queue.BrokerName, "queue": queue.QueueId})
		}
		return all, nil
	})
}

func groups(fields adminFields) (any, error) {
	return asAdmin(func(ctx context.Context, by admin.Admin) (any, error) {
		found, err := by.GetAllSubscriptionGroup(ctx, fields.Broker, 3*time.Second)
		if err != nil {
			return nil, err
		}
		return found.SubscriptionGroupTable, nil
	})
}
