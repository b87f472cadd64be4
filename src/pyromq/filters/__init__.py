"""What a consumer asks for: tag lists, SQL92 expressions, and subscriptions made of either."""
