"""Adapters to the field's reference scorers, and the few error rates that need none."""
