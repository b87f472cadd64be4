"""A consumer's part in its group: members, queues, offsets."""
