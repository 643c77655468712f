"""Handrail runs an agent's tool calls without trusting them."""
