"""What turns state into a running broker: the lock, the clock, waking consumers, injected faults."""
