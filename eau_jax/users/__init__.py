"""Who the agent talks with: symbolic rules, a noisy stand-in, a language model, and their mixture."""
