"""Reinforcement learning of LLM agents that talk with users over many turns and call tools, in JAX."""

__version__ = "0.1.0"
