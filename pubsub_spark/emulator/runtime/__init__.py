"""The runtime of the state: the lock, the clock, waking consumers, injected faults."""
