"""The delivery to the destinations of subscriptions, such as push endpoints."""
