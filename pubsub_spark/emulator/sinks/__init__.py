"""The delivery to where a subscription points: push endpoints."""
