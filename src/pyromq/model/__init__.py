"""The words that every layer shares: ids, messages, topics, groups."""
