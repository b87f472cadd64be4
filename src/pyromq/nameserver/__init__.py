"""The name server: which broker serves which topic, as the brokers themselves say."""
