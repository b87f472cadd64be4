"""Filters of consumers: tag lists, SQL92 expressions, and subscriptions made of either."""
