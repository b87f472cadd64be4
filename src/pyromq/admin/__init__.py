"""Look at a cluster and change it: topics, groups, consumers, messages, dead letters, brokers."""
