"""The cost of everything beside the model, up to ten thousand tasks and a thousand steps."""
